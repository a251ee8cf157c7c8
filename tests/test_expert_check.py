"""tools/expert_check.py: what the expert makes of planted faults."""

import json
from pathlib import Path
from types import SimpleNamespace

import expert_check
import pytest
import torch
from tiny_run import trained

from profforce.data.batch import Batch
from profforce.models.tts import TTSModel


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["trainer.steps=1", "method=teacher_forcing"]
    return trained(tmp_path_factory.mktemp("expert_check"), *words, num_utterances=60)


def nearly(model: TTSModel, batch: Batch) -> SimpleNamespace:
    """What a good model says teacher-forced."""
    drawn = torch.Generator().manual_seed(0)
    noise = torch.randn(batch.mel.shape, generator=drawn)
    return SimpleNamespace(mel_before=batch.mel + 0.3 * model.mel_std * noise)


def test_planted_faults_are_seen(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_check, "read_along", nearly)
    monkeypatch.setattr(expert_check, "PIECE", (15, 40))

    def told(later: str) -> dict[str, dict[str, float]]:
        path = tmp_path / "new" / f"{later}.json"
        words = ["--run", str(run), "--num", "40", "--later", later, "--json", str(path)]
        assert expert_check.main(words) == 0
        return {row["fault"]: row for row in json.loads(path.read_text())["rows"]}

    rows, prefix, hindsight = told("0.9"), told("0"), told("1")
    assert set(rows) == set(expert_check.FAULTS)
    assert rows["none"]["rightly"] is None and rows["none"]["elsewhere"] < 0.01
    assert rows["left out"]["rightly"] > 0.8 and rows["ended early"]["rightly"] > 0.8
    assert rows["mumbled"]["rightly"] > prefix["mumbled"]["rightly"]
    assert rows["left out"]["elsewhere"] < prefix["left out"]["elsewhere"]
    for fault in ("left out", "said twice", "ended early"):
        assert rows[fault]["rightly"] >= hindsight[fault]["rightly"]
    assert "| left out | " in capsys.readouterr().out


def test_what_cannot_be_measured_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--num", "0"], ["--checkpoint", "step-99"]):
        assert expert_check.main(["--run", str(run), *words]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1
