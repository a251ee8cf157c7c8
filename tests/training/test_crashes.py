"""A run that is cut off anywhere loses nothing but the time since its last checkpoint."""

import errno
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import crash_test
import pytest
import torch
from tiny_run import made_corpus

from profforce.app import main
from profforce.config import TrainConfig
from profforce.data.batch import Batch
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.models.checkpoint import SaveError, find_checkpoint, recover
from profforce.training import loop
from profforce.training.faults import DivergedError
from profforce.training.logs import RunLog
from profforce.training.run import train
from profforce.training.state import TrainState
from profforce.training.step import StepLoss

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
    config = changed(config, evaluate_every=99)
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    config = changed(config, keep_last=1, keep_best=0)  # the damaged one must not count
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
    config = changed(config, evaluate_every=99)
    train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail_from(8, torch.save))
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
    corpus = made_corpus(tmp_path / "corpus", 8)
    words = ["model=tiny", *corpus, "trainer.steps=1", "trainer.batch_size=2"]
    capfd.readouterr()
    monkeypatch.setattr(torch, "save", full)
    assert main(["train", *words, "method=teacher_forcing", f"hydra.run.dir={tmp_path / 'r'}"]) == 1
    errors = [line for line in capfd.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(errors) == 1 and "checkpoint cannot be written" in errors[0]
    assert list((tmp_path / "r/checkpoints").iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills processes of a fork server")
def test_a_run_killed_again_and_again_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    out = crash_test.crash_test(tmp_path, 4, seed=1, steps=12)
    assert out.kills == 4 and out.rounds >= 1
    assert out.differences == []


def test_the_crash_test_sees_a_single_bit(config: TrainConfig, tmp_path: Path) -> None:
    train(changed(config, steps=3), tmp_path / "whole")
    for name in ("whole", "same", "other"):
        (tmp_path / f"{name}.log").write_text("")
    shutil.copytree(tmp_path / "whole", tmp_path / "same")
    shutil.copytree(tmp_path / "whole", tmp_path / "other")
    assert crash_test.differences(tmp_path / "whole", tmp_path / "same") == []
    file = tmp_path / "other/metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["loss/mel"] = math.nextafter(rows[1]["loss/mel"], 10)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    path = tmp_path / "other/checkpoints/step-3/meta.json"
    meta = json.loads(path.read_text())
    meta["sha256"]["model.safetensors"] = "0"
    path.write_text(json.dumps(meta))
    found = crash_test.differences(tmp_path / "whole", tmp_path / "other")
    assert [line.split()[1] for line in found] == [str(len(rows)), "step", "weights"]


def plant(monkeypatch: pytest.MonkeyPatch, steps: Container[int], part: str = "loss/total") -> None:
    """Make one part of the loss no number in these steps, counted from 1."""
    inner = loop.Loop._losses

    def losses(self: Any, batch: Batch, number: int) -> Iterator[StepLoss]:
        for loss in inner(self, batch, number):
            if self.state.step + 1 in steps and part in loss.scalars and loss.value is not None:
                yield StepLoss(loss.value * float("nan"), loss.scalars)
            else:
                yield loss

    monkeypatch.setattr(loop.Loop, "_losses", losses)


def state_of(run: Path, step: int) -> dict[str, Any]:
    path = run / f"checkpoints/step-{step}/train_state.pt"
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def learned(state: dict[str, Any]) -> list[bytes]:
    """Everything that gradients change."""
    parts = [state[name] for name in ("model", "discriminator", "control", "average")]
    parts += [
        {
            f"{key}/{name}": value
            for key, values in optimizer["state"].items()
            for name, value in values.items()
        }
        for optimizer in (state["optimizer"], state["judge_optimizer"])
    ]
    return [value.numpy().tobytes() for part in parts for value in part.values()]


@pytest.mark.parametrize(
    ("part", "accumulate"),
    [("loss/total", 2), ("gan/free_running", 1), ("gan/discriminator", 1)],
    ids=["reconstruction", "fooling", "judging"],
)
def test_a_step_that_is_no_number_is_skipped_counted_and_named(
    config: TrainConfig,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
    accumulate: int,
) -> None:
    plant(monkeypatch, {6}, part)
    config = changed(config, steps=7, accumulate=accumulate, checkpoint_every=1, keep_last=3)
    config = changed(config, evaluate_every=99)
    train(config, run_dir)
    before, at, after = (state_of(run_dir, step) for step in (5, 6, 7))
    first, second, third = map(learned, (before, at, after))
    assert first == second != third
    assert at["gate_accuracy"] == before["gate_accuracy"]
    assert at["step"] == 6 and at["schedule"]["last_epoch"] == 6
    assert [row["loss/skipped"] for row in metrics(run_dir) if "loss/total" in row] == [0] * 5 + [
        1,
        1,
    ]
    (line,) = [m for m in caplog.messages if "skipped" in m]
    named = line.partition("batch: ")[2].split(", ")
    assert line.startswith("step 6 skipped: loss ") and len(named) == 5 * accumulate
    assert set(named) <= {path.stem for path in Path(config.data.root).rglob("*.wav")}


def test_a_run_with_skipped_steps_resumes_to_the_bit(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {1, 4, 5, 6, 9})
    config = changed(config, evaluate_every=99, checkpoint_every=5, keep_last=9)
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts/checkpoints/step-12")
    shutil.rmtree(tmp_path / "parts/checkpoints/step-10")
    train(config, tmp_path / "parts", resume=True)
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    assert state_of(tmp_path / "parts", 12)["skips"] == {"total": 5, "in_a_row": 0}


def test_ten_in_a_row_end_the_run_with_its_state_saved(
    config: TrainConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(config, steps=30, evaluate_every=30, checkpoint_every=30)
    with monkeypatch.context() as patch:
        plant(patch, range(4, 99))
        with pytest.raises(DivergedError, match=r"step 13 of .*10 steps in a row"):
            train(config, run_dir)
        with pytest.raises(DivergedError, match=r"step 23 of"):  # a resume has ten more
            train(config, run_dir, resume=True)
    assert find_checkpoint(run_dir, "last").name == "step-23"
    train(config, run_dir, resume=True)
    assert state_of(run_dir, 30)["skips"] == {"total": 20, "in_a_row": 0}


def test_nine_in_a_row_do_not_end_the_run(
    config: TrainConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, {*range(1, 10), *range(11, 13)})
    config = changed(config, evaluate_every=99)
    train(config, run_dir)
    assert state_of(run_dir, 12)["skips"] == {"total": 11, "in_a_row": 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["model", "average", "discriminator", "control"])
def test_weights_that_are_no_numbers_are_never_saved(
    config: TrainConfig, corpus: Corpus, run_dir: Path, part: str, value: float
) -> None:
    state = TrainState(config, corpus, torch.device("cpu"))
    state.save(run_dir)
    before = sorted((p, p.stat().st_mtime_ns) for p in run_dir.rglob("*"))
    with torch.no_grad():
        next(getattr(state, part).parameters()).view(-1)[0] = value
    state.step = 1
    with pytest.raises(DivergedError, match=r"step 1 of .*the weights are not finite"):
        state.save(run_dir)
    assert sorted((p, p.stat().st_mtime_ns) for p in run_dir.rglob("*")) == before
