"""tools/long_texts.py: a run examined on texts of several times the length."""

import json
import sys
from pathlib import Path

import pytest

from profforce.app import main

TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
try:
    import long_texts
finally:
    sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("long_texts")
    corpus = [f"data.root={root / 'corpus'}", "data.num_utterances=12", "data.valid_fraction=0.3"]
    assert main(["data", "prepare", "synthetic", *corpus]) == 0
    words = ["model=tiny", "model.cross_attention=forward", "model.positions=relative"]
    words += ["data=synthetic", *corpus, "trainer.steps=1", "trainer.batch_size=4"]
    words += ["method=teacher_forcing", f"hydra.run.dir={root / 'run'}"]
    assert main(["train", *words]) == 0
    return root / "run"


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
