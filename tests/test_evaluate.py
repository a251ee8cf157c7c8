"""``profforce evaluate`` on a run of a few steps: figures, files, what it refuses."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tiny_run import trained
from torch import Tensor

from profforce.app import main
from profforce.bridge import saved_settings
from profforce.commands.evaluate import _give
from profforce.completion import complete
from profforce.config import EvaluateConfig
from profforce.data.corpus import load_corpus
from profforce.evaluation.evaluate import evaluate
from profforce.evaluation.figures import FIGURES
from profforce.evaluation.judging import JUDGE_HZ, Take
from profforce.evaluation.material import hard_sentences, held_out
from profforce.evaluation.report import Report
from profforce.evaluation.voice import VoiceEncoder
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.training.distributed import Team
from profforce.training.gap import fixed_sentences, measure_gap

QUICK = ["pitch=false", "griffin_lim_iterations=2", "num_utterances=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["method.start_step=1", "freerun.pool_size=4", "trainer.checkpoint_every=2"]
    return trained(tmp_path_factory.mktemp("evaluate"), *words)


@pytest.fixture
def result(run: Path, tmp_path: Path) -> Callable[..., Any]:
    def evaluate(*words: str) -> Any:
        path = tmp_path / "result.json"
        assert main(["evaluate", "--run", str(run), "--json", str(path), *QUICK, *words]) == 0
        return json.loads(path.read_text(encoding="utf-8"))

    return evaluate


class Recalled(Team):
    """A process that knows what the others have answered."""

    def gathered(self, what: str, value: Any) -> list[Any]:
        ANSWERS[self.rank] = value
        return [ANSWERS[rank] for rank in range(self.size) if rank in ANSWERS]


ANSWERS: dict[int, Any] = {}


@pytest.mark.parametrize("size", [2, 9])
def test_processes_that_divide_the_texts_measure_what_one_does(run: Path, size: int) -> None:
    config = EvaluateConfig(griffin_lim_iterations=2, pitch=False)
    material = held_out(saved_settings(run), 5)
    whole = evaluate(run, material, config)
    ANSWERS.clear()
    for rank in reversed(range(size)):
        together = evaluate(run, material, config, team=Recalled(rank, size))
    assert len(together.rows) == len(whole.rows)
    for one, other in zip(together.rows, whole.rows, strict=True):
        one["real_time_factor"] = other["real_time_factor"] = 0.0
        for name, value in other.items():
            assert one[name] == (pytest.approx(value) if isinstance(value, float) else value)
    for part, alone in zip(together.spoken, whole.spoken, strict=True):
        assert torch.equal(part.audio, alone.audio)
    for part, alone in zip(together.forced or [], whole.forced or [], strict=True):
        torch.testing.assert_close(part, alone)


def test_held_out_utterances_are_compared_with_their_recordings(
    result: Callable[..., Any], run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = result("pitch=true", "num_utterances=64")
    settings = saved_settings(run)
    valid = load_corpus(settings.data, settings.text, settings.mel).valid
    [measured] = found["runs"]
    assert {row["id"] for row in measured["rows"]} == {u.id for u in valid.utterances}
    assert measured["checkpoint"] == "step-4"
    for row in measured["rows"]:
        assert row["mcd_gap_db"] == pytest.approx(
            row["mcd_free_db"] - row["mcd_forced_db"],
            abs=2e-6,  # each is rounded
        )
        frames = int(valid.num_frames[[u.id for u in valid.utterances].index(row["id"])])
        real = frames * settings.mel.hop_length / settings.mel.sample_rate
        assert row["stop_error_s"] == pytest.approx(abs(row["seconds"] - real), abs=1e-5)
        assert row["failed"] == float(bool(row["faults"])) and 0 <= row["unaligned"] <= 1
    for key in ("mcd_free_db", "voicing_error", "focus"):
        values = [row[key] for row in measured["rows"]]
        assert measured["summary"][key]["mean"] == pytest.approx(np.mean(values), abs=1e-5)
    assert "real_time_factor" not in json.dumps(found)
    table = capfd.readouterr().out
    assert "MCD gap, dB" in table and "real-time factor" in table and "held-out" in table


def test_the_teacher_forced_pass_is_that_of_the_gap_meter(
    result: Callable[..., Any], run: Path
) -> None:
    measured = result("num_utterances=3")["runs"][0]["summary"]
    settings = saved_settings(run)
    valid = load_corpus(settings.data, settings.text, settings.mel).valid
    model, _ = load_model(find_checkpoint(run, "last"), torch.device("cpu"))
    reading = measure_gap(model, fixed_sentences(valid, 3), settings.freerun)
    expected = reading.scalars["gap/teacher_forced_dtw"]
    assert measured["dtw_forced"]["mean"] == pytest.approx(expected, rel=1e-4)


def test_texts_alone_have_no_distances(result: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("ba be.\nbi bo bu.\nba.\n")
    found = result("--input", str(tmp_path / "texts.txt"))
    assert [row["text"] for row in found["runs"][0]["rows"]] == ["ba be.", "bi bo bu."]
    assert {"failed", "stopped", "unaligned", "focus"} == set(found["figures"])


def test_hard_sentences_are_bundled(result: Callable[..., Any]) -> None:
    found = result("--hard", "max_seconds_per_symbol=0.026")
    assert found["material"] == "hard sentences" and found["num_utterances"] == 2


def test_the_same_bytes_again(run: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        files = [tmp_path / f"{name}.{kind}" for kind in ("json", "md", "html")]
        words = [
            w
            for f, o in zip(files, ("json", "markdown", "html"), strict=True)
            for w in (f"--{o}", str(f))
        ]
        assert main(["evaluate", "--run", str(run), *words, *QUICK]) == 0
        made.append([file.read_bytes() for file in files])
    assert made[0] == made[1]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.names: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [v or "" for k, v in attrs if k in ("src", "href")]
        self.names += [v or "" for k, v in attrs if k == "id"]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_no_other_file(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (tmp_path / "texts.jsonl").write_text('{"text": "ba <b>&be</b>."}\n')
    source = ["--input", str(tmp_path / "texts.jsonl")]
    assert main(["evaluate", "--run", str(run), "--html", str(page), *QUICK]) == 0
    parser = _Page()
    parser.feed(page.read_text(encoding="utf-8"))
    links = [source for source in parser.sources if source.startswith("#")]
    assert parser.open == [] and len(parser.sources) - len(links) == 2 * 3
    assert set(links) <= {f"#{name}" for name in parser.names}
    assert all(source.startswith(("data:", "#")) for source in parser.sources)
    assert not re.search(r"https?://|<script|@import|url\(", page.read_text(encoding="utf-8"))
    sounds = [s for s in parser.sources if s.startswith("data:audio/flac;base64,")]
    for sound in sounds:
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(sound.partition(",")[2])))
        assert len(samples) and rate == saved_settings(run).mel.sample_rate
    assert len(sounds) == 4  # recording and free run of two
    assert main(["evaluate", "--run", str(run), "--html", str(page), *QUICK, *source]) == 0
    assert "ba &lt;b&gt;&amp;be&lt;/b&gt;." in page.read_text(encoding="utf-8")


def test_a_run_against_another_on_the_same_texts(
    result: Callable[..., Any], run: Path, tmp_path: Path
) -> None:
    markdown = tmp_path / "table.md"
    found = result("--compare", str(run), "--markdown", str(markdown))
    first, second = found["runs"]
    assert first["rows"] == second["rows"]
    for estimate in found["differences"][0]["summary"].values():
        assert estimate == {"mean": 0.0, "low": 0.0, "high": 0.0}
    lines = markdown.read_text(encoding="utf-8").splitlines()
    widths = {line.count("|") for line in lines if line.startswith("| ") and "%" in line}
    assert 5 in widths


class Deaf:
    """Writes nothing down."""

    def __init__(self, num_threads: int | None = None) -> None:
        pass

    def __call__(self, audio: Tensor) -> str:
        return ""


def test_listening_adds_its_figures(
    result: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profforce.evaluation.listening.Whisper", Deaf)
    found = result("listen=true", "num_utterances=64")
    assert found["runs"][0]["summary"]["word_errors"]["mean"] == 1.0
    assert {"word_errors_recorded", "word_errors_vocoded"} <= set(found["figures"])
    assert found["figures"]["character_errors"]["better"] == "lower"


def score(take: Take) -> dict[str, float]:
    """Any sound is as good as it is long."""
    return {f"distillmos{take.suffix}": len(take.audio) / JUDGE_HZ}


def test_judges_of_quality_stand_beside_ground_truth(
    result: Callable[..., Any], run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("profforce.evaluation.quality.DistillMos", lambda: score)
    page, table = tmp_path / "page.html", tmp_path / "table.md"
    words = ["--compare", str(run), "--html", str(page), "--markdown", str(table)]
    found = result("judges=[distillmos]", *words)
    keys = {"distillmos", "distillmos_forced", "distillmos_vocoded", "distillmos_recorded"}
    assert keys <= set(found["figures"]) and keys <= set(found["differences"][0]["summary"])
    rows = [row for row in found["runs"][0]["rows"] if "distillmos" in row]
    assert rows
    for row in rows:
        assert row["distillmos"] == pytest.approx(row["seconds"], abs=1e-3)
        length = abs(row["distillmos"] - row["distillmos_recorded"])
        assert length == pytest.approx(row["stop_error_s"], abs=0.05)
    for path in (page, table):
        assert "DistillMOS, vocoded recordings" in path.read_text(encoding="utf-8")


def untrained() -> VoiceEncoder:
    torch.manual_seed(0)
    return VoiceEncoder().eval()


def test_voices_are_compared_with_that_of_training(
    result: Callable[..., Any], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VoiceEncoder, "pretrained", untrained)
    held = result("judges=[speaker]", "num_voice_recordings=3")
    ends = ("", "_forced", "_vocoded", "_recorded")
    assert {f"voice_training{end}" for end in ends} <= set(held["figures"])
    assert "voice_recording_vocoded" in held["figures"]
    assert "voice_recording_recorded" not in held["figures"]
    (tmp_path / "texts.txt").write_text("ba be bi bo.\n")
    texts = result("judges=[speaker]", "--input", str(tmp_path / "texts.txt"))
    assert 0 < texts["runs"][0]["rows"][0]["voice_training"] <= 1
    assert [key for key in texts["figures"] if key.startswith("voice")] == ["voice_training"]


def test_a_voice_needs_the_corpus_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(VoiceEncoder, "pretrained", untrained)
    assert main(["evaluate", "--run", str(tmp_path), "--hard", "judges=[speaker]"]) == 2
    assert "leave it out of judges" in capfd.readouterr().err.splitlines()[-1]


def test_a_missing_judge_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("profforce.evaluation.packages.find_spec", lambda _: None)
    assert main(["evaluate", "--run", str(tmp_path), "judges=[speaker]"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and "pip install 'profforce[speaker]'" in line


def test_what_was_spoken_is_kept(result: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    found = result("--out", str(tmp_path / "out"), "sample_rate=16000", "format=flac")
    ids = {row["id"] for row in found["runs"][0]["rows"]}
    assert {path.stem for path in (tmp_path / "out").iterdir()} == ids
    assert {soundfile.info(p).samplerate for p in (tmp_path / "out").glob("*.flac")} == {16000}
    result("--out", str(tmp_path / "two"), "--compare", str(run))
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["1-run", "2-run"]


def test_timing_goes_into_files_when_asked(result: Callable[..., Any]) -> None:
    assert result("timing=true")["runs"][0]["summary"]["real_time_factor"]["mean"] > 0


def test_settings_are_completed() -> None:
    assert complete("evaluate", [], "num_utt") == ["num_utterances="]


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys, profforce.app as a; assert a.main(['evaluate', '--help']) == 0;"
        "print([m for m in ('torch', 'hydra', 'omegaconf', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_every_figure_is_said_once() -> None:
    for names in ({figure.key for figure in FIGURES}, {figure.title for figure in FIGURES}):
        assert len(names) == len(FIGURES)


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="no /dev/null here")
def test_a_device_is_written_to_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profforce.evaluation.report.to_json", str)
    (tmp_path / "null").symlink_to("/dev/null")
    _give(Report(hard_sentences(1), [], timing=False), [str(tmp_path / "null"), None, None])
    assert (tmp_path / "null").is_char_device()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hard", "--input", "-"], "give either --hard or --input FILE; got both"),
        (["--json", "-", "--html", "-"], "only one of --json"),
        (["--json", "nowhere/x.json"], "cannot be written"),
        (["--out", "/dev/null/out"], "cannot write here"),
        (["num_utterances=0"], "num_utterances must be >= 1, got 0"),
        (["num_uterances=1"], "did you mean 'num_utterances'"),
        (["--input", "none.txt"], "cannot be read"),
        (["--compare", "nowhere", *QUICK], "no such run folder"),
        (["checkpoint=step-9"], "step-9"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_mistakes_are_one_line(
    run: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--run", str(run), *words]) == 2
    err = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(err) == 1 and said in err[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (None, "no settings of a training here"),
        ("trainer: [", "cannot be read"),
        ("- 1", "holds no settings"),
        ("trainer: {stps: 3}", "stps"),
        ("data: {root: gone, kind: custom}", "no corpus here"),
    ],
    ids=["none", "broken", "a list", "unknown key", "no corpus"],
)
def test_settings_and_corpora_that_are_not_there(
    tmp_path: Path,
    settings: str | None,
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if settings is not None:
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra/config.yaml").write_text(settings)
    assert main(["evaluate", "--run", str(tmp_path)]) == 2
    err = capfd.readouterr().err.splitlines()[-1]
    assert said in err and "--hard or --input FILE" in err


def test_recordings_of_another_mel_are_refused(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    settings = saved_settings(run)
    words = ["model=tiny", "data=synthetic", f"data.root={settings.data.root}"]
    words += ["data.num_utterances=24", "data.valid_fraction=0.3", "mel.num_mels=40"]
    words += ["trainer.steps=1", "trainer.batch_size=4", f"hydra.run.dir={other}"]
    assert main(["train", *words]) == 0
    assert main(["evaluate", "--run", str(run), "--compare", str(other), *QUICK]) == 2
    err = capfd.readouterr().err
    assert "num_mels" in err.splitlines()[-1] and "evaluating" not in err
