"""Batches within a budget of frames: everything that a step holds keeps to it."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profforce.config import MethodName, TrainConfig
from profforce.data.corpus import Corpus
from profforce.training.plan import build_sampler
from profforce.training.pool import fitting
from profforce.training.run import train
from profforce.training.state import TrainState
from tests.training.test_loop import StopAt, changed, same_checkpoint

CPU = torch.device("cpu")


def budgeted(config: TrainConfig, max_frames: int, size: int = 24) -> TrainConfig:
    config = changed(config, max_frames=max_frames, batch_size=size)
    return replace(config, freerun=replace(config.freerun, batch_size=None, pool_size=12))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 2000))
def test_as_many_as_fit_and_no_more(lengths: list[int], budget: int) -> None:
    count = fitting(lengths, budget)
    assert count == 1 or count * max(lengths[:count]) <= budget
    assert count == len(lengths) or (count + 1) * max(lengths[: count + 1]) > budget


def test_recordings_keep_to_the_budget(config: TrainConfig, corpus: Corpus) -> None:
    longest = int(corpus.train.num_frames.max())
    sampler = build_sampler(corpus.train, budgeted(config, 3 * longest))
    frames = corpus.train.num_frames
    sizes = [len(batch) * frames[batch].max() for batch in sampler.batches(0)]
    assert max(sizes) <= 3 * longest and len(sizes) > 3


def test_a_longer_utterance_is_said_and_alone(
    config: TrainConfig, corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    longest = int(corpus.train.num_frames.max())
    with caplog.at_level(logging.WARNING):
        sampler = build_sampler(corpus.train, budgeted(config, longest - 1))
    assert f"trainer.max_frames={longest - 1}" in caplog.text
    position = int(corpus.train.num_frames.argmax())
    assert [position] in list(sampler.batches(0))


@pytest.mark.parametrize("name", [MethodName.professor_forcing, MethodName.through_time])
def test_free_runs_keep_to_half_of_it(
    config: TrainConfig, corpus: Corpus, name: MethodName
) -> None:
    longest = int(corpus.train.num_frames.max() * config.freerun.max_length_ratio)
    config = budgeted(config, 6 * longest)
    expert = 0.0 if name == MethodName.through_time else 0.5
    method = replace(config.method, name=name, start_step=0, imitation_weight=expert)
    config = replace(config, method=method)
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    if name == MethodName.through_time:
        batch = state.texts_to_speak(state.choose_texts(0), 0).batch
        frames = batch.mel_lengths * config.freerun.max_length_ratio
        assert 1 < len(batch) < 12
        assert len(batch) * float(frames.max()) <= 3 * longest
        return
    state.pool.refresh(state.mirror, 0, CPU)
    drawn = [state.pool.draw(12, CPU, max_frames=3 * longest).batch for _ in range(8)]
    for batch in drawn:
        assert len(batch) == 1 or batch.mel.shape[0] * batch.mel.shape[1] <= 3 * longest
    order = [index for batch in drawn for index in batch.indices.tolist()][:12]
    assert sorted(order) == sorted(state.pool.samples.indices)


def test_a_resumed_run_sees_the_batches_of_the_uninterrupted_one(
    config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    import signal

    config = budgeted(config, 4 * int(corpus.train.num_frames.max()))
    train(config, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(config, tmp_path / "parts", report=StopAt(7, signal.SIGTERM))
    train(config, tmp_path / "parts", resume=True)
    same_checkpoint(tmp_path / "whole/checkpoints/step-12", tmp_path / "parts/checkpoints/step-12")
