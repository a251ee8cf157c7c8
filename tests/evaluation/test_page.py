"""The HTML page: where to look first, runs side by side, figures as one reads them."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import torch

from profforce.audio.griffin_lim import GriffinLim
from profforce.config import MelConfig
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.material import Material
from profforce.evaluation.page import to_html
from profforce.evaluation.report import Report
from profforce.sampling.request import Request
from profforce.sampling.spoken import Spoken, SpokenPart
from profforce.sampling.stopping import StoppedBy
from profforce.text.sentences import Gap

MEL = MelConfig(sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000.0)
FAULT = {"kind": "skipping", "start_s": 0.1, "end_s": 0.2, "detail": "left out 'b<c'"}
TEXTS = ["one & two", "a<b"]


def spoken(text: str) -> Spoken:
    mel = torch.linspace(-9, -3, 6 * 80).reshape(6, 80)
    part = SpokenPart(
        text=text,
        gap=Gap.sentence,
        symbols=[*text, "<eos>"],
        audio=torch.zeros(6 * 128),
        mel=mel,
        alignment=torch.full((6, len(text) + 1), 0.1),
        stop_probability=torch.zeros(6),
        stopped_by=StoppedBy.stop,
        faults=[],
        retries=0,
        held=False,
    )
    return Spoken(Request(text, "here"), [part], [0], part.audio, mel, [])


def page(*runs: str) -> str:
    rows = [
        {"text": TEXTS[0], "faults": [], "failed": 0.0, "stopped": 1.0, "unaligned": 0.25},
        {"text": TEXTS[1], "faults": [FAULT], "failed": 1.0, "stopped": 0.0, "unaligned": 0.5},
    ]
    said = [spoken(text) for text in TEXTS]
    ones = [Evaluation(run, "step-1", rows, said, MEL, 1, GriffinLim(MEL)) for run in runs]
    material = Material("texts", [Request(text, "here") for text in TEXTS])
    return to_html(Report(material, ones, timing=False))


def test_failures_are_listed_first_with_a_link_to_each() -> None:
    html = page("runs/a")
    links = re.findall(r'<li><a href="(#\w+)">([^<]*)</a>: ([^<]*)</li>', html)
    assert links == [("#u2", "2. a&lt;b", "skipping")]
    assert "1 of runs/a with faults" in html and html.count('<section id="u2">') == 1


def test_what_is_so_or_not_is_no_percentage() -> None:
    html = page("runs/a")
    cells = re.findall(r"<tr><td>(failed|ended by the stop head)</td><td>(yes|no)</td></tr>", html)
    assert [value for _, value in cells] == ["no", "yes", "yes", "no"]
    assert "<td>symbols not attended</td><td>25.0%</td>" in html


def test_runs_stand_side_by_side_and_nothing_is_left_open() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.most = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "img"):
                self.open.append(tag)
            self.most = max(self.most, len(self.open))

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    html, tags = page("runs/a", "runs/b"), Tags()
    tags.feed(html)
    assert tags.open == [] and tags.most < 12
    sections = html.split("<section")[1:]
    assert [section.count("<h3>") for section in sections] == [2, 2]
    assert [section.count('<div class="runs">') for section in sections] == [1, 1]


def test_a_page_without_failures_has_no_list() -> None:
    material = Material("texts", [Request(TEXTS[0], "here")])
    rows = [{"text": TEXTS[0], "faults": [], "failed": 0.0}]
    one = Evaluation("r", "step-1", rows, [spoken(TEXTS[0])], MEL, 1, GriffinLim(MEL))
    report = Report(material, [one], timing=False)
    assert "<details>" not in to_html(report)
    assert to_html(report) == to_html(replace(report))
