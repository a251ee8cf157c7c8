"""``profforce data check`` from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from profforce.app import main
from profforce.commands.data import _corpus_words
from profforce.data.check import listen
from profforce.data.check.run import check_corpus
from profforce.display import _Rate
from tests.data.check_cases import VALID_FRACTION, Made


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "corpus"
    root.mkdir()
    return Made(root)


def run(*words: str, root: str = "corpus") -> int:
    setting = f"data.valid_fraction={VALID_FRACTION}"
    return main(["data", "check", f"data.root={root}", setting, *words])


def test_a_clean_corpus_is_one_line(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    made.write()
    assert run() == 0
    out = capfd.readouterr()
    assert out.out == "corpus: 9 utterances, 0.00 hours: 0 errors, 0 warnings, 0 notes\n"
    assert "listening: 9/9" in out.err


def test_defects_are_grouped_with_their_first_places(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    made.lines = [f"{line} <b>" for line in made.lines[:5]] + ["x[red]|sentence six."]
    made.write()
    assert run() == 1
    out = capfd.readouterr().out
    manifest = made.root / "metadata.csv"
    assert "error audio.missing (1): no such audio file\n  expected a file; add" in out
    place = f"  {Path('corpus/metadata.csv')}:6; got 'x[red]'; expected corpus/wavs/x[red].wav\n"
    assert place in out, manifest
    assert "warning text.markup (5)" in out and "metadata.csv:3; got" in out
    assert "metadata.csv:4; got" not in out and "  and 2 more\n" in out
    assert "6 utterances" in out and "1 error, 10 warnings, 4 notes" in out
    assert out.endswith("training would refuse this corpus\n")
    assert run("--all") == 1
    assert "metadata.csv:5; got" in capfd.readouterr().out


def test_no_name_reaches_the_terminal_raw(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    made.path(2).rename(made.root / "wavs" / "u\x1b[31m2\u202e.wav")
    made.lines[3] = "\x1b[2J\0\udce9|sentence four."
    made.lines[4] = "\x1b[2J\0|sentence five."
    made.write()
    assert run() == 1
    assert run("--json", "-") == 1
    assert main(["train", "data=custom", "data.root=corpus"]) == 2
    out = capfd.readouterr()
    assert not {"\x1b", "\0", "\u202e"} & set(out.out.split("{")[0] + out.err)
    assert r"wavs/u\x1b[31m2\u202e.wav" in out.out


def test_the_report_as_json(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    made.lines[2] = "u2|sentence \x07\ufffd \udce9"
    made.lines[3] = "u3|sentence \x07four."
    made.write()
    assert run("--json", "-") == 1
    report = json.loads(capfd.readouterr().out)
    assert (report["errors"], report["warnings"], report["utterances"]) == (1, 1, 8)
    kinds = {row["code"]: row for row in report["kinds"]}
    assert kinds["text.control"]["places"][0]["where"] == "corpus/metadata.csv:4"
    assert kinds["line.not_utf8"]["severity"] == "error" and kinds["line.not_utf8"]["count"] == 1
    assert set(kinds["line.not_utf8"]) == {
        *("code", "severity", "what", "expected", "remedy", "count", "places")
    }
    assert run("--json", "report.json", "--text-only") == 1
    written = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert written["hours"] is None and written["errors"] == 1
    assert run("--json", "report.json", "--text-only") == 1  # an older report may be replaced
    capfd.readouterr()
    assert run("--json", "corpus/metadata.csv") == 2
    err = capfd.readouterr().err
    assert "error: corpus/metadata.csv: this is the manifest itself" in err


def test_a_corrected_copy(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    made.lines[2] = "gone|sentence three."
    made.write(end="\r\n")
    assert run("--fix", "fixed.csv") == 1
    out = capfd.readouterr().out
    assert (
        "wrote 8 lines to fixed.csv (line ends converted: 8; lines with errors left out: 1)" in out
    )
    assert Path("fixed.csv").read_bytes().count(b"\n") == 8
    assert run("--fix", "fixed.csv") == 2
    out = capfd.readouterr()
    assert "error: fixed.csv: exists already" in out.err and out.out == ""
    assert run("--fix", "corpus/metadata.csv") == 2
    assert b"gone" in (made.root / "metadata.csv").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.root=nowhere"], "error: nowhere: no such folder; check data.root"),
        (["demo"], "error: data/demo: no such folder; run: profforce data prepare demo"),
        (["data.rot=x"], "data.rot"),
        (["--fix"], "option '--fix' requires an argument"),
    ],
)
def test_mistakes_are_one_line(
    made: Made, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["data", "check", *words]) == 2
    err = capfd.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_corpus_may_be_named_as_for_prepare_and_train() -> None:
    assert _corpus_words(["demo", "seed=1"]) == ["data=demo", "seed=1"]
    assert _corpus_words(["data.root=x"]) == ["data=custom", "data.root=x"]
    assert _corpus_words(["data=ljspeech", "data.root=x"]) == ["data=ljspeech", "data.root=x"]
    assert _corpus_words([]) == []


def test_it_needs_no_pytorch() -> None:
    code = "import sys, profforce.data.check.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_processes_find_the_same_in_the_same_order(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profforce.config import DataConfig, MelConfig, TextConfig

    for k in (1, 4, 6):
        made.bytes_of(k, lambda raw: raw[: len(raw) // 2])
    made.write()

    def report() -> dict[str, object]:
        data = DataConfig(root=str(made.root), valid_fraction=VALID_FRACTION)
        return check_corpus(data, TextConfig(), MelConfig()).as_json()

    alone = report()
    monkeypatch.setattr(listen, "PARALLEL_FROM", 1)
    monkeypatch.setattr(listen, "num_cpus", lambda: 2)
    assert report() == alone and alone["errors"] == 3


def test_the_bar_tells_the_rate() -> None:
    from rich.progress import Progress

    now = iter(range(100))
    bar = Progress(get_time=lambda: float(next(now)))
    task = bar.add_task("listening", total=100)
    assert str(_Rate().render(bar.tasks[0])) == ""
    for done in (10, 20, 30):
        bar.update(task, completed=done)
    assert str(_Rate().render(bar.tasks[0])).endswith("/s")
