"""Out of memory: the batch in halves, once said; then an end with the state saved."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from profforce.config import MethodName, TrainConfig
from profforce.data.batch import Batch, collate
from profforce.data.corpus import Corpus
from profforce.training import loop
from profforce.training.distributed import Team
from profforce.training.memory import OutOfRoomError, Room, halved, is_out_of_memory
from profforce.training.plan import Part
from profforce.training.run import train
from profforce.training.shares import WHOLE
from profforce.training.state import TrainState
from profforce.training.step import StepLoss
from tests.training.test_loop import changed, same_checkpoint

CPU = torch.device("cpu")
NO_ROOM = "CUDA out of memory. Tried to allocate 20.00 MiB"


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """``room(most)``: with more utterances a step runs out of memory after its first gradients."""

    def limit(most: int) -> list[int]:
        sizes: list[int] = []
        original = loop.professor_forcing_step

        def step(
            model: Any, judge: Any, control: Any, real: Batch, *rest: Any, **options: Any
        ) -> Iterator[StepLoss]:
            sizes.append(len(real))
            for loss in original(model, judge, control, real, *rest, **options):
                yield loss
                if len(real) > most:
                    raise torch.OutOfMemoryError(f"{NO_ROOM}.\nA word on fragments.")

        monkeypatch.setattr(loop, "professor_forcing_step", step)
        return sizes

    return limit


@pytest.mark.parametrize(("accumulate", "most"), [(1, 2), (2, 3)])
def test_halves_add_up_to_the_whole(
    config: TrainConfig,
    tmp_path: Path,
    room: Callable[[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    accumulate: int,
    most: int,
) -> None:
    """Dropout is drawn by place in the batch, so there is none; the prenet's noise stays."""
    method = replace(config.method, name=MethodName.teacher_forcing)
    model = replace(config.model, dropout=0.0)
    config = replace(config, method=method, model=model)
    config = changed(config, steps=1, accumulate=accumulate, evaluate_every=99)
    found: list[dict[str, torch.Tensor]] = []
    clip = loop.clip_gradients

    def spy(model: torch.nn.Module, limit: float) -> torch.Tensor:
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        return clip(model, limit)

    monkeypatch.setattr(loop, "clip_gradients", spy)
    train(config, tmp_path / "whole")
    sizes = room(most)
    train(config, tmp_path / "halves")
    assert max(sizes) > most >= max(sizes[-2:])
    whole, halves = found
    assert whole.keys() == halves.keys()
    for name, value in whole.items():
        size = float(value.abs().max())
        torch.testing.assert_close(
            halves[name], value, rtol=1e-4, atol=1e-4 * size + 1e-6, msg=name
        )
    first, second = (
        json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[0])
        for run in ("whole", "halves")
    )
    assert second["loss/total"] == pytest.approx(first["loss/total"], rel=1e-4)
    assert second["mem/halved_steps"] == 1


@pytest.mark.parametrize("name", [MethodName.professor_forcing, MethodName.through_time])
@pytest.mark.parametrize("free", [1, 4])
def test_free_runs_are_halved_too(
    config: TrainConfig,
    tmp_path: Path,
    room: Callable[[int], list[int]],
    caplog: pytest.LogCaptureFixture,
    name: MethodName,
    free: int,
) -> None:
    method = replace(config.method, name=name, imitation_weight=0.0)
    config = replace(config, method=method, freerun=replace(config.freerun, batch_size=free))
    sizes = room(3)
    with caplog.at_level(logging.WARNING):
        train(changed(config, steps=5), tmp_path / "run")
    assert caplog.text.count("out of memory with") == 1
    assert max(sizes) > 3 and sizes.count(2) + sizes.count(1) > 0
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row["gan/accuracy"] <= 1 for row in rows if "gan/accuracy" in row)
    assert any("gan/accuracy" in row for row in rows)


def test_shares_of_halves_add_up(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.pool.refresh(state.mirror, 0, CPU)
    batch = collate([corpus.train[k] for k in range(5)])
    part = Part(number=3, free=[0, 1, 2], shares=replace(WHOLE, frames=0.5))
    first, second = halved(state, part, batch)
    assert [len(half) for _, half in (first, second)] == [3, 2]
    assert first[1].ids + second[1].ids != [] and sorted(first[1].ids + second[1].ids) == sorted(
        batch.ids
    )
    assert first[1].mel_lengths.min() >= second[1].mel_lengths.max()
    assert second[1].mel.shape[1] == int(second[1].mel_lengths.max())
    assert first[0].free + second[0].free == [0, 1, 2]
    for name, value in vars(part.shares).items():
        both = getattr(first[0].shares, name) + getattr(second[0].shares, name)
        assert both == pytest.approx(value)
    one = batch.rows(torch.tensor([2]))
    assert halved(state, part, one) == [(part, one)]


def test_a_second_failure_ends_the_run_with_its_state_saved(
    config: TrainConfig,
    tmp_path: Path,
    room: Callable[[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = changed(config, steps=6)
    train(config, tmp_path / "whole")
    train(changed(config, steps=3), tmp_path / "run")
    sizes = room(1)
    with pytest.raises(OutOfRoomError) as caught:
        train(config, tmp_path / "run", resume=True)
    monkeypatch.undo()
    message = str(caught.value)
    assert message.startswith("step 4 of") and f"got {NO_ROOM}; the state is saved" in message
    assert "go on with --resume and a trainer.max_frames" in message
    assert sizes[0] > sizes[1] > 1 and len(sizes) == 2
    train(config, tmp_path / "run", resume=True)
    same_checkpoint(tmp_path / "whole/checkpoints/step-6", tmp_path / "run/checkpoints/step-6")


@pytest.mark.parametrize(("made", "way"), [(False, "begin again with"), (True, "go on from the")])
def test_memory_that_fails_beside_the_batches_is_one_line(
    config: TrainConfig, corpus: Corpus, tmp_path: Path, made: bool, way: str
) -> None:
    room = Room(TrainState(config, corpus, CPU), tmp_path)
    if made:
        (tmp_path / "checkpoints/step-2").mkdir(parents=True)
    with pytest.raises(OutOfRoomError) as caught, room.told():
        raise torch.OutOfMemoryError(f"{NO_ROOM}.\nA word on fragments.")
    assert f"; got {NO_ROOM}; {way}" in str(caught.value)
    assert "a lower freerun.max_memory_mib" in str(caught.value)
    with pytest.raises(RuntimeError, match="shapes do not fit"), room.told():
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("name", ["measure_gap", "clip_gradients"])
def test_readings_and_optimizers_that_do_not_fit_end_the_run_in_one_line(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError(f"{NO_ROOM}.")

    monkeypatch.setattr(loop, name, fail)
    with pytest.raises(OutOfRoomError, match="what comes beside the batches"):
        train(changed(config, steps=1), tmp_path / "run")


def test_halved_steps_of_all_processes_are_counted(config: TrainConfig, corpus: Corpus) -> None:
    class Two(Team):
        def summed(self, values: Tensor, what: str) -> Tensor:
            return 2 * values + 1

    room = Room(TrainState(config, corpus, CPU, Two()), Path("run"))
    room.halved_steps = 3
    assert room.halved_by_all() == 7


def test_other_errors_are_not_taken_for_it(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Iterator[StepLoss]:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(loop, "professor_forcing_step", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(config, tmp_path / "run")
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"))
