"""Disturbed teacher forcing: noise and scheduled sampling."""

from dataclasses import replace

import pytest
import torch

from profforce.config import TrainConfig, TrainerConfig
from profforce.data.batch import Batch, collate
from profforce.data.corpus import Corpus
from profforce.nn.noise import PrenetNoise
from profforce.training.inputs import disturbed
from profforce.training.passes import teacher_forced
from profforce.training.state import TrainState

CPU = torch.device("cpu")


@pytest.fixture
def state(config: TrainConfig, corpus: Corpus) -> TrainState:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.model.eval()
    return state


def fed(state: TrainState, batch: Batch, **settings: float) -> torch.Tensor:
    noise = PrenetNoise(0, batch.indices)
    return disturbed(state.model, batch, noise, replace(TrainerConfig(), **settings)).mel


def test_off_means_the_recordings_themselves(state: TrainState) -> None:
    batch = collate([state.corpus.train[i] for i in range(3)])
    assert fed(state, batch) is batch.mel


def test_noise_is_in_deviations_of_the_training_mels(state: TrainState) -> None:
    batch = collate([state.corpus.train[i] for i in range(8)])
    added = (fed(state, batch, input_noise=0.3) - batch.mel) / state.model.mel_std
    assert float(added.std()) == pytest.approx(0.3, rel=0.05)
    assert float(added.mean()) == pytest.approx(0, abs=0.02)


def test_scheduled_sampling_feeds_whole_steps_of_the_first_pass(state: TrainState) -> None:
    batch = collate([state.corpus.train[0]] * 8)  # without padding
    predicted = teacher_forced(
        state.model, batch, PrenetNoise(0, batch.indices), refine=False
    ).mel_before
    torch.testing.assert_close(fed(state, batch, scheduled_sampling=1.0), predicted)
    torch.manual_seed(0)
    mel = fed(state, batch, scheduled_sampling=0.25)
    factor = state.config.model.reduction_factor
    own, real = (
        torch.isclose(mel, source)
        .all(-1)[:, : mel.shape[1] // factor * factor]
        .unflatten(1, (-1, factor))
        for source in (predicted, batch.mel)
    )
    assert bool((own.all(-1) | real.all(-1)).all())
    assert float(own.all(-1).float().mean()) == pytest.approx(0.25, abs=0.08)


def test_the_gradient_is_of_the_second_pass_only(state: TrainState) -> None:
    batch = collate([state.corpus.train[i] for i in range(2)])
    assert not fed(state, batch, scheduled_sampling=0.5, input_noise=0.1).requires_grad
