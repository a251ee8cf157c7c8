"""Tables of evaluations whose figures are known."""

import json
from typing import Any

from profforce.audio.griffin_lim import GriffinLim
from profforce.config import MelConfig
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.material import Material
from profforce.evaluation.report import Report, table, to_json, to_markdown
from profforce.sampling.request import Request

MEL = MelConfig(sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000.0)
FAULT = {"kind": "early_stop", "start_s": 1.0, "end_s": 1.5, "detail": "not spoken: 'a|b*<eos>'"}


def measured(run: str, *figures: dict[str, Any]) -> Evaluation:
    rows = [{"text": f"text {n}", "faults": [], **row} for n, row in enumerate(figures)]
    return Evaluation(run, "step-1", rows, [], MEL, 1, GriffinLim(MEL))


def report(*evaluations: Evaluation, timing: bool = False) -> Report:
    requests = [Request(row["text"], "here") for row in evaluations[0].rows]
    return Report(Material("texts", requests), list(evaluations), timing)


def test_a_clear_difference_says_which_way_is_better() -> None:
    first = measured("a", {"focus": 0.5, "unaligned": 0.5}, {"focus": 0.7, "unaligned": 0.3})
    other = measured("b", {"focus": 0.6, "unaligned": 0.6}, {"focus": 0.8, "unaligned": 0.4})
    found = report(first, other)
    titles, lines = table(found, found.figures)
    assert titles == ["", "a step-1", "b step-1", "b minus a"]
    cells = {line[0]: line[3] for line in lines}
    assert cells["focus rate"] == "+0.100 [+0.100, +0.100] better"
    assert cells["symbols not attended"] == "+10.0% [+10.0%, +10.0%] worse"


def test_an_unclear_difference_does_not() -> None:
    first = measured("a", {"focus": 0.5}, {"focus": 0.7})
    other = measured("b", {"focus": 0.6}, {"focus": 0.6})
    found = report(first, other)
    [line] = table(found, found.figures)[1]
    assert line[3] == "+0.000 [-0.100, +0.100]"


def test_faults_are_counted_and_told_in_the_run_that_has_them() -> None:
    found = report(
        measured("a", {"failed": 0.0}), measured("b", {"failed": 1.0, "faults": [FAULT]})
    )
    lines = to_markdown(found).splitlines()
    assert "| utterances with early_stop | 0 | 1 | +1 |" in lines
    assert "Faults of b:" in lines and "Faults of a:" not in lines
    told = r"| text 0 | early_stop at 1.00 s: not spoken: 'a\|b\*&lt;eos>' |"
    assert lines[-1] == told
    assert [run["faults"] for run in json.loads(to_json(found))["runs"]] == [{}, {"early_stop": 1}]


def test_time_is_for_the_terminal() -> None:
    one = measured("a", {"real_time_factor": 0.5})
    assert [figure.key for figure in report(one).figures] == ["real_time_factor"]
    assert "real_time_factor" not in to_json(report(one))
    slower = measured("b", {"real_time_factor": 0.6})
    text = to_markdown(report(one, slower, timing=True))
    assert "0.500 [0.500, 0.500]" in text and "worse" not in text


def test_a_figure_that_no_utterance_of_a_run_has() -> None:
    first, other = measured("a", {"f0_semitones": 1.0}), measured("b", {"f0_semitones": None})
    found = report(first, other)
    [line] = table(found, found.figures)[1]
    assert line[1:] == ["1.00 [1.00, 1.00]", "-", "-"]
    text = to_json(found)
    summary = json.loads(text)["runs"][1]["summary"]["f0_semitones"]
    assert summary == {"mean": None, "low": None, "high": None}
    assert "NaN" not in text
