"""A run that is cut off anywhere loses nothing but the time since its last checkpoint."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profforce.app import main
from profforce.config import TrainConfig
from profforce.errors import UserError
from profforce.models import checkpoint
from profforce.models.checkpoint import SaveError, find_checkpoint, recover
from profforce.training.logs import RunLog
from profforce.training.loop import train

TIMES = ("time/", "mem/")


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in rows]


def changed(config: TrainConfig, **trainer: Any) -> TrainConfig:
    return replace(config, trainer=replace(config.trainer, **trainer))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def full(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("file", ["model.safetensors", "train_state.pt", "meta.json"])
def test_a_damaged_last_checkpoint_costs_its_steps_and_no_more(
    config: TrainConfig, tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = changed(config, keep_last=1, keep_best=1)
    train(config, tmp_path / "whole")
    train(changed(config, keep_last=3), tmp_path / "cut")
    truncate(tmp_path / "cut/checkpoints/step-12" / file)
    caplog.clear()
    train(config, tmp_path / "cut", resume=True)
    (line,) = [m for m in caplog.messages if "set aside" in m]
    assert "step-12" in line and line.endswith("resuming from step-8")
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert find_checkpoint(tmp_path / "cut", "last").name == "step-12"
    assert recover(tmp_path / "cut").name == "step-12"


def test_a_run_without_a_whole_checkpoint_is_refused_in_one_line(
    config: TrainConfig, run_dir: Path
) -> None:
    train(changed(config, steps=1), run_dir)
    truncate(run_dir / "checkpoints/step-1/train_state.pt")
    with pytest.raises(UserError, match="training state of a checkpoint damaged") as err:
        train(config, run_dir, resume=True)
    assert "\n" not in str(err.value)


def fail_from(step: int, inner: Callable[..., Any]) -> Callable[..., Any]:
    def save(state: Any, file: Any) -> Any:
        return full() if state["step"] >= step else inner(state, file)

    return save


def test_a_disk_full_while_saving_ends_the_run_which_goes_on_with_more_room(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.torch, "save", fail_from(8, checkpoint.torch.save))
        with pytest.raises(SaveError, match=r"step-8: checkpoint cannot .*No space"):
            train(config, tmp_path / "cut")
    assert [p.name for p in (tmp_path / "cut/checkpoints").iterdir()] == ["step-4"]
    train(config, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_records_that_cannot_be_written_are_one_line(
    config: TrainConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(changed(config, steps=2), run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "write", full)
        with pytest.raises(SaveError, match="takes no more writing; got No space left"):
            train(config, run_dir, resume=True)
    assert recover(run_dir).name == "step-2"


def test_the_command_exits_1_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = [
        f"data.root={tmp_path / 'corpus'}",
        "data.num_utterances=8",
        "data.valid_fraction=0.3",
    ]
    assert main(["data", "prepare", "synthetic", *corpus]) == 0
    words = ["model=tiny", "data=synthetic", *corpus, "trainer.steps=1", "trainer.batch_size=2"]
    capfd.readouterr()
    monkeypatch.setattr(checkpoint.torch, "save", full)
    assert main(["train", *words, "method=teacher_forcing", f"hydra.run.dir={tmp_path / 'r'}"]) == 1
    errors = [line for line in capfd.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(errors) == 1 and "checkpoint cannot be written" in errors[0]
    assert list((tmp_path / "r/checkpoints").iterdir()) == []
