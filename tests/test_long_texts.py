"""tools/long_texts.py: a run examined on texts of several times the length."""

import json
from pathlib import Path

import long_texts
import pytest
from tiny_run import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["model.cross_attention=forward", "model.positions=relative"]
    words += ["trainer.steps=1", "method=teacher_forcing"]
    return trained(tmp_path_factory.mktemp("long_texts"), *words, num_utterances=12)


def test_a_row_for_each_length(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.json"
    words = ["--run", str(run), "--times", "1", "3", "--texts", "2", "--json", str(path)]
    assert long_texts.main(words) == 0
    table = json.loads(path.read_text())
    assert [row["times"] for row in table] == [1, 3]
    assert all(0 <= row["failed"] <= 1 for row in table)
    assert capsys.readouterr().out.count("\n| ") == 2


def test_what_cannot_be_examined_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert long_texts.main(["--run", str(run), "--texts", "0"]) == 1
    assert long_texts.main(["--run", str(run / "nothing")]) == 1
    assert capsys.readouterr().err.count("error: ") == 2
