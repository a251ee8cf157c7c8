"""TensorBoard's files do not grow for ever."""

import logging
from pathlib import Path

import pytest

from profforce.config import MethodName, TrainConfig
from profforce.training import show
from profforce.training.loop import train
from tests.training.test_loop import changed


def events(run: Path) -> int:
    return sum(file.stat().st_size for file in (run / "tb").iterdir())


def test_sounds_and_pictures_end_at_a_size_and_scalars_go_on(
    config: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config.method.name = MethodName.teacher_forcing
    config = changed(config, steps=3, evaluate_every=1)
    train(config, tmp_path / "all")
    monkeypatch.setattr(show, "BOARD_MIB", 0.05)
    with caplog.at_level(logging.INFO):
        train(config, tmp_path / "bounded")
    assert events(tmp_path / "bounded") < 0.5 * events(tmp_path / "all")
    assert "those of step 3 lie in samples/ only" in caplog.text
    assert len(list((tmp_path / "bounded/samples/step-3").glob("*.wav"))) == 2
    rows = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("all", "bounded")]
    assert len(rows[0].splitlines()) == len(rows[1].splitlines())
