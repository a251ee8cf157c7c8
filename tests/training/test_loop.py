"""The loop: it learns, resumes to the bit, saves on signals, refuses what cannot work."""

import json
import logging
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profforce import runs
from profforce.config import MethodName, TrainConfig
from profforce.errors import UserError
from profforce.models.checkpoint import find_checkpoint, load_model, recover
from profforce.training import loop
from profforce.training.logs import Report
from profforce.training.run import train

TIMES = ("time/", "mem/")


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in rows]


def changed(config: TrainConfig, **trainer: Any) -> TrainConfig:
    return replace(config, trainer=replace(config.trainer, **trainer))


class StopAt:
    """A reporter that asks the process to end at a step, as a person or a scheduler would."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def __call__(self, report: Report) -> None:
        if report.step == self.step:
            os.kill(os.getpid(), self.number)


def all_tensors(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    else:
        return {name: state}
    out: dict[str, Any] = {}
    for key, value in items:
        out |= all_tensors(value, f"{name}/{key}")
    return out


def same_checkpoint(first: Path, second: Path) -> None:
    a, b = (
        all_tensors(torch.load(run / "train_state.pt", weights_only=True))
        for run in (first, second)
    )
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, b[name]), name
        else:
            assert value == b[name], name
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(stop=st.integers(1, 11))
def test_a_stopped_and_resumed_run_equals_the_uninterrupted_one_to_the_bit(
    config: TrainConfig, tmp_path_factory: pytest.TempPathFactory, stop: int
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    config = changed(config, accumulate=2 if stop % 2 else 1)
    train(config, folder / "whole")
    with pytest.raises(SystemExit) as ended:
        train(config, folder / "parts", report=StopAt(stop, signal.SIGTERM))
    assert ended.value.code == 143
    assert (folder / f"parts/checkpoints/step-{stop}").is_dir()
    train(config, folder / "parts", resume=True)
    assert metrics(folder / "whole") == metrics(folder / "parts")
    same_checkpoint(*(folder / part / "checkpoints/step-12" for part in ("whole", "parts")))


def test_rows_written_after_the_last_checkpoint_are_not_kept_twice(
    config: TrainConfig, run_dir: Path, tmp_path: Path
) -> None:
    train(config, tmp_path / "whole")
    train(changed(config, steps=12), run_dir)
    for step in (8, 12):  # as if killed before these were written
        path = run_dir / f"checkpoints/step-{step}"
        if path.exists() and step == 12:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss/to')
    train(config, run_dir, resume=True)
    assert metrics(run_dir) == metrics(tmp_path / "whole")


def test_interrupt_saves_and_exits_130_saying_how_to_go_on(
    config: TrainConfig, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        train(config, run_dir, report=StopAt(3, signal.SIGINT))
    assert ended.value.code == 130
    assert caplog.messages[-1] == (
        f"stopped by Ctrl-C at step 3 of 12; continue: profforce train --resume {run_dir}"
    )
    assert find_checkpoint(run_dir, "last").name == "step-3"
    assert signal.getsignal(signal.SIGINT) is before


def test_training_lowers_the_loss_and_writes_what_it_promises(
    config: TrainConfig, run_dir: Path
) -> None:
    config = changed(config, steps=60, lr=3e-3, evaluate_every=30, checkpoint_every=30)
    score = train(config, run_dir)
    rows = metrics(run_dir)
    losses = [row["loss/total"] for row in rows if "loss/total" in row]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    gan = [row for row in rows if "gan/accuracy" in row]
    assert [row["step"] for row in gan] == list(range(3, 61))
    assert {row["gan/length_only_accuracy"] for row in gan} == {0.5}
    assert any(row.get("gan/teacher_forced") for row in gan)
    gaps = [row for row in rows if "gap/free_running_dtw" in row]
    assert [row["step"] for row in gaps] == [30, 60]
    wanted = gaps[-1]["gap/free_running_dtw"] + 1 - gaps[-1]["gap/stopped_fraction"]
    assert score == pytest.approx(wanted)
    assert (run_dir / "samples/step-60").is_dir()
    assert list((run_dir / "tb").glob("events*"))
    model, meta = load_model(find_checkpoint(run_dir, "best"), torch.device("cpu"))
    assert meta["model"]["reduction_factor"] == model.config.reduction_factor == 4
    assert float(model.mel_std.min()) > 0 and not torch.equal(
        model.mel_mean, torch.zeros_like(model.mel_mean)
    )


def test_teacher_forcing_never_makes_a_pool(config: TrainConfig, run_dir: Path) -> None:
    method = replace(config.method, name=MethodName.teacher_forcing)
    train(replace(config, method=method), run_dir)
    assert not any(k.startswith(("gan/", "pool/")) for row in metrics(run_dir) for k in row)


def test_pool_age_and_refresh_follow_the_step_number(config: TrainConfig, run_dir: Path) -> None:
    train(config, run_dir)
    ages = {
        row["step"]: row["pool/age_steps"] for row in metrics(run_dir) if "pool/age_steps" in row
    }
    # refreshed before steps 2, 5, 8, 11 (counted from 0); logged after the step
    assert ages == {3: 1, 4: 2, 5: 3, 6: 1, 7: 2, 8: 3, 9: 1, 10: 2, 11: 3, 12: 1}


def test_a_folder_with_a_run_is_not_overwritten(config: TrainConfig, run_dir: Path) -> None:
    train(changed(config, steps=1), run_dir)
    with pytest.raises(UserError, match="holds a run already; continue it with --resume"):
        train(config, run_dir)


def test_two_trainings_in_one_folder_are_refused(
    config: TrainConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one has the folder, another process neither begins nor resumes there."""
    monkeypatch.setattr(runs, "PATIENCE_S", 0.1)
    train(changed(config, steps=2), run_dir)
    with runs.held(run_dir):
        before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
        monkeypatch.setattr(runs, "_MINE", set())  # as another process
        with pytest.raises(UserError, match="another training writes into this folder"):
            train(changed(config, steps=4), run_dir, resume=True)
        shutil.rmtree(run_dir / "checkpoints")
        with pytest.raises(UserError, match="another training writes into this folder"):
            train(config, run_dir)
    left = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    assert left == {path: time for path, time in before.items() if path in left}


def test_resuming_with_other_sizes_is_refused_with_both_values(
    config: TrainConfig, run_dir: Path
) -> None:
    train(changed(config, steps=1), run_dir)
    other = replace(config, model=replace(config.model, width=32))
    with pytest.raises(UserError, match="width 16 != 32"):
        train(other, run_dir, resume=True)


def test_resuming_a_finished_run_says_so_and_writes_nothing(
    config: TrainConfig, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    score = train(changed(config, steps=2), run_dir)
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*") if p.name != runs.LOCK}
    with caplog.at_level(logging.INFO):
        assert train(changed(config, steps=2), run_dir, resume=True) == score
    assert "nothing to do: the run is at step 2 and trainer.steps=2" in caplog.text
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*") if p.name != runs.LOCK} == before


def test_a_run_killed_before_its_first_checkpoint_can_be_started_again(
    config: TrainConfig, run_dir: Path
) -> None:
    (run_dir / "checkpoints/.step-3.partial").mkdir(parents=True)
    train(changed(config, steps=2), run_dir)
    assert find_checkpoint(run_dir, "last").name == "step-2"


def test_a_replacement_cut_off_between_its_renames_is_found(
    config: TrainConfig, run_dir: Path
) -> None:
    train(changed(config, steps=2), run_dir)
    folder = run_dir / "checkpoints"
    (folder / "step-2").rename(folder / ".step-2.replaced")
    (folder / "step-2.x").mkdir()
    with pytest.raises(UserError, match="the run has no checkpoint"):
        find_checkpoint(run_dir, "last")
    assert recover(run_dir).name == find_checkpoint(run_dir, "last").name == "step-2"


def test_rates_given_anew_on_resume_are_used(config: TrainConfig, run_dir: Path) -> None:
    train(changed(config, steps=3), run_dir)
    other = changed(config, steps=4, lr=config.trainer.lr / 2, weight_decay=0.5)
    other = replace(other, discriminator=replace(other.discriminator, lr=0.25))
    train(other, run_dir, resume=True)
    state = torch.load(run_dir / "checkpoints/step-4/train_state.pt", weights_only=True)
    groups = state["optimizer"]["param_groups"]
    assert [g["initial_lr"] for g in groups] == [config.trainer.lr / 2] * 2
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0]
    assert state["judge_optimizer"]["param_groups"][0]["lr"] == 0.25
    old, new = (
        next(row for row in metrics(run_dir) if row["step"] == step)["loss/learning_rate"]
        for step in (3, 4)
    )
    assert new < 0.6 * old * 4 / 3 + 1e-12


def test_professor_forcing_may_begin_on_resume(config: TrainConfig, run_dir: Path) -> None:
    plain = replace(config.method, name=MethodName.teacher_forcing)
    late = replace(config.method, start_step=100)
    for number, method in enumerate((plain, late)):
        run = run_dir / str(number)
        train(replace(changed(config, steps=3), method=method), run)
        now = replace(config.method, start_step=1)
        rare = replace(config.freerun, every=50)
        train(replace(changed(config, steps=5), method=now, freerun=rare), run, resume=True)
        assert any("gan/accuracy" in row for row in metrics(run))


def test_a_resume_that_cannot_be_to_the_bit_says_why(
    config: TrainConfig, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(changed(config, steps=2), run_dir)
    train(changed(config, steps=3), run_dir, resume=True)
    assert "not to the bit" not in caplog.text
    threads = torch.get_num_threads()
    try:
        other = replace(changed(config, steps=4, num_threads=threads + 1), seed=config.seed + 1)
        train(other, run_dir, resume=True)
    finally:
        torch.set_num_threads(threads)
    assert f"it changed seed {config.seed} -> {config.seed + 1}" in caplog.text
    assert f"threads {threads} -> {threads + 1}" in caplog.text


def test_another_corpus_is_refused_on_resume(config: TrainConfig, run_dir: Path) -> None:
    train(changed(config, steps=2), run_dir)
    for data in (
        replace(config.data, num_utterances=12),
        replace(config.data, valid_fraction=0.6),
    ):
        with pytest.raises(UserError, match="the corpus differs from the run's"):
            train(replace(changed(config, steps=4), data=data), run_dir, resume=True)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("meta.json", "[]"),
        ("meta.json", '{"step": null}'),
        ("meta.json", '{"step": 2, "format": 1}'),
        ("meta.json", '{"step": 1e999, "format": 1}'),
    ],
)
def test_damaged_checkpoints_are_one_line(
    config: TrainConfig, run_dir: Path, file: str, content: str
) -> None:
    train(changed(config, steps=2), run_dir)
    (run_dir / "checkpoints/step-2" / file).write_text(content)
    with pytest.raises(UserError):
        train(changed(config, steps=4), run_dir, resume=True)


@pytest.mark.parametrize("broken", [[], {"step": 2}, {"optimizer": None}, {"pool": "x"}])
def test_damaged_training_state_is_one_line(
    config: TrainConfig, run_dir: Path, broken: object
) -> None:
    train(changed(config, steps=2), run_dir)
    path = run_dir / "checkpoints/step-2/train_state.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, **broken} if broken and broken != {"step": 2} else broken, path)
    with pytest.raises(UserError, match="training state"):
        train(changed(config, steps=4), run_dir, resume=True)


def test_divergence_stops_the_run_and_spares_its_checkpoints(
    config: TrainConfig, run_dir: Path
) -> None:
    train(changed(config, steps=2), run_dir)
    wild = changed(config, steps=40, lr=1e30, checkpoint_every=1, warmup_steps=1)
    with pytest.raises(UserError, match="training diverged: the gradient is not finite"):
        train(wild, run_dir, resume=True)
    model, _ = load_model(find_checkpoint(run_dir, "last"), torch.device("cpu"))
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_terms_come_every_interval_from_the_start_step_on(
    config: TrainConfig, run_dir: Path
) -> None:
    method = replace(config.method, start_step=2, interval=3)
    config = changed(replace(config, method=method), steps=9, log_every=1)
    train(config, run_dir)
    rows = [row for row in metrics(run_dir) if "loss/total" in row]
    assert [row["step"] - 1 for row in rows if "gan/accuracy" in row] == [2, 5, 8]


def test_accumulated_scalars_are_those_of_the_parts_together(
    config: TrainConfig, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    inner = loop.professor_forcing_step

    def watch(*args: Any, **kwargs: Any) -> Any:
        losses = list(inner(*args, **kwargs))
        seen.append(float(losses[0].scalars["loss/total"]))
        return losses

    monkeypatch.setattr(loop, "professor_forcing_step", watch)
    train(changed(config, steps=1, accumulate=3, log_every=1), run_dir)
    (row,) = [row for row in metrics(run_dir) if "loss/total" in row]
    assert len(seen) == 3
    assert row["loss/total"] == pytest.approx(sum(seen))


def test_resuming_nothing_is_one_line(config: TrainConfig, run_dir: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        train(config, run_dir, resume=True)
    run_dir.mkdir()
    with pytest.raises(UserError, match="no checkpoint"):
        train(config, run_dir, resume=True)


def test_the_time_limit_ends_and_saves_a_resumable_run(config: TrainConfig, run_dir: Path) -> None:
    train(changed(config, max_minutes=1e-9), run_dir)
    assert find_checkpoint(run_dir, "last").name == "step-0"
    train(config, run_dir, resume=True)
    assert find_checkpoint(run_dir, "last").name == "step-12"


def test_old_checkpoints_go_but_the_best_stays(config: TrainConfig, run_dir: Path) -> None:
    train(changed(config, checkpoint_every=1, evaluate_every=2, keep_last=2, keep_best=1), run_dir)
    left = sorted(int(p.name.split("-")[1]) for p in (run_dir / "checkpoints").iterdir())
    scores = {
        row["step"]: row["gap/free_running_dtw"] + 1 - row["gap/stopped_fraction"]
        for row in metrics(run_dir)
        if "gap/free_running_dtw" in row
    }
    best = min(scores, key=lambda step: scores[step])
    assert set(left) >= {11, 12}
    assert len(left) <= 3
    assert find_checkpoint(run_dir, "best").name in {f"step-{best}", f"step-{best + 1}"}
