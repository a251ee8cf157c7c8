"""tools/second_readings.py: what of the gap two recordings of a text have between them."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare_seeds
import pytest
import second_readings
from tiny_run import trained

from profforce.data.corpus import Corpus, load_corpus


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["trainer.steps=1", "method=teacher_forcing"]
    return trained(tmp_path_factory.mktemp("second_readings"), *words, num_utterances=12)


def twice_read(*given: Any) -> Corpus:
    """The corpus, as if two pairs of its utterances said the same, in other writing."""
    corpus = load_corpus(*given)
    train = copy.copy(corpus.train)
    utterances = list(train.utterances)
    for one, other in ((0, 1), (2, 4)):
        spoken = utterances[one].spoken.upper().replace(".", " ...")
        utterances[other] = replace(utterances[other], spoken=spoken)
    train.utterances = utterances
    return replace(corpus, train=train)


def test_a_text_that_was_read_twice_tells_the_floor(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(second_readings, "load_corpus", twice_read)
    path = tmp_path / "new" / "rows.json"
    words = ["--run", str(run), "--min-words", "1", "--readings", "2", "--json", str(path)]
    assert second_readings.main(words) == 0
    (found,) = json.loads(path.read_text())["runs"]
    assert len(found["rows"]) == 2
    for row in found["rows"]:
        assert row["mcd_floor_db"] == pytest.approx(row["mcd_other_db"] - row["mcd_forced_db"])
        assert row["mcd_gap_db"] == pytest.approx(row["mcd_floor_db"] + row["mcd_excess_db"])
        assert row["mcd_recordings_db"] > 0
    assert "of 2 texts" in capsys.readouterr().out
    assert compare_seeds.main(["--base", str(path), "--other", str(path)]) == 0
    assert "| mcd_excess_db |" in capsys.readouterr().out


def test_what_cannot_be_measured_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--min-words", "1"], ["--readings", "0"], ["--checkpoint", "step-99"]):
        assert second_readings.main(["--run", str(run), *words]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1
