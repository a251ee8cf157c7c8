"""TensorBoard's files do not grow for ever."""

import logging
from pathlib import Path

import pytest

from profforce.config import MethodName, TrainConfig
from profforce.training import show
from profforce.training.run import train
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


def test_of_old_readings_those_with_a_checkpoint_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "KEPT_READINGS", 2)
    for step in (5, 10, 100, 20, 9):
        (tmp_path / f"samples/step-{step}").mkdir(parents=True)
    (tmp_path / "samples/step-mine").mkdir()
    (tmp_path / "checkpoints/step-9").mkdir(parents=True)
    show.forget_old(tmp_path)
    left = {path.name for path in (tmp_path / "samples").iterdir()}
    assert left == {"step-9", "step-20", "step-100", "step-mine"}


def test_a_run_keeps_its_newest_readings(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "KEPT_READINGS", 2)
    config.method.name = MethodName.teacher_forcing
    config = changed(config, steps=4, evaluate_every=1, checkpoint_every=4)
    train(config, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run/samples").iterdir()} == {"step-3", "step-4"}
