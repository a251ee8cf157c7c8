"""The gap meter and the step's gradients."""

import torch

from profforce.config import FreerunConfig, TrainConfig
from profforce.data.batch import collate
from profforce.data.corpus import Corpus
from profforce.nn.noise import PrenetNoise
from profforce.training.gap import fixed_sentences, measure_gap
from profforce.training.seeds import generator
from profforce.training.state import TrainState
from profforce.training.step import frozen, professor_forcing_step

CPU = torch.device("cpu")


def test_fixed_sentences_are_the_same_and_spread_over_lengths(corpus: Corpus) -> None:
    first, again = (fixed_sentences(corpus.train, 5) for _ in range(2))
    assert torch.equal(first.indices, again.indices)
    lengths = first.mel_lengths.tolist()
    assert lengths == sorted(lengths) and len(set(first.indices.tolist())) == 5
    assert len(fixed_sentences(corpus.valid, 999)) == len(corpus.valid)


def test_a_reading_compares_both_passes_and_repeats(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    batch = fixed_sentences(corpus.train, 3)
    reading = measure_gap(state.model, batch, FreerunConfig())
    again = measure_gap(state.model, batch, FreerunConfig())
    assert reading.scalars == again.scalars
    assert state.model.training
    scalars = reading.scalars
    assert (
        scalars["gap/dtw_ratio"]
        == scalars["gap/free_running_dtw"] / scalars["gap/teacher_forced_dtw"]
    )
    errors = (reading.free_running.lengths - batch.mel_lengths).abs().float().mean()
    assert scalars["gap/stop_error_frames"] == float(errors)


def losses(state: TrainState, weights: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    state.pool.refresh(state.mirror, 2, CPU)
    batch = collate([state.corpus.train[i] for i in range(4)])
    out = professor_forcing_step(
        state.model,
        state.discriminator,
        state.control,
        batch,
        state.pool.draw(4, CPU),
        noise=PrenetNoise(0, batch.indices),
        weights=weights,
        crop_generator=generator(0, "crop", 0),
        config=state.config,
    )
    assert out.discriminator is not None
    return out.model, out.discriminator


def test_each_loss_moves_its_own_network_only(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    model_loss, judge_loss = losses(state, (0.5, 0.1))
    model_loss.backward()
    assert all(p.grad is None for p in state.judges.parameters())
    assert all(p.grad is not None for p in state.model.parameters())
    state.model.zero_grad()
    judge_loss.backward()
    assert all(p.grad is not None for p in state.judges.parameters())
    assert all(p.grad is None for p in state.model.parameters())


def test_professor_forcing_changes_the_gradient_and_weight_zero_does_not(
    config: TrainConfig, corpus: Corpus
) -> None:
    grads = []
    for weights in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
        state = TrainState(config, corpus, CPU)
        state.set_mel_statistics()
        losses(state, weights)[0].backward()
        grads.append(state.model.mel_out.weight.grad)
    plain, free, teacher = grads
    assert plain is not None and free is not None and teacher is not None
    assert not torch.allclose(plain, free) and not torch.allclose(plain, teacher)


def test_frozen_lets_gradients_through_and_restores_the_flags() -> None:
    layer = torch.nn.Linear(2, 1)
    layer.bias.requires_grad_(False)
    x = torch.ones(1, 2, requires_grad=True)
    with frozen(layer):
        layer(x).sum().backward()
    assert x.grad is not None and layer.weight.grad is None
    assert layer.weight.requires_grad and not layer.bias.requires_grad
