"""The sample pool: refreshed by step number, drawn without replacement, resumable."""

from dataclasses import replace

import pytest
import torch

from profforce.config import FreerunConfig, TrainConfig
from profforce.data.corpus import Corpus
from profforce.models.transformer import TransformerTTS
from profforce.training.pool import SamplePool
from profforce.training.state import TrainState

CPU = torch.device("cpu")


@pytest.fixture
def state(config: TrainConfig, corpus: Corpus) -> TrainState:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    return state


def pool_of(state: TrainState, **changes: int) -> SamplePool:
    settings = replace(FreerunConfig(every=5, pool_size=6), **changes)
    return SamplePool(settings, state.corpus.train, seed=1)


def test_it_is_due_at_the_start_and_every_n_steps(state: TrainState) -> None:
    pool = pool_of(state)
    assert [step for step in range(20) if pool.is_due(step, 4)] == [4, 9, 14, 19]


def test_every_sample_is_drawn_once_before_any_is_drawn_again(state: TrainState) -> None:
    pool = pool_of(state)
    pool.refresh(state.mirror, 4, CPU)
    assert len(set(pool.indices)) == 6
    drawn = [pool.draw(4, CPU).batch.indices.tolist() for _ in range(3)]
    flat = [index for part in drawn for index in part]
    assert sorted(flat[:6]) == sorted(flat[6:]) == sorted(pool.indices)
    assert flat[:6] != flat[6:]
    assert len(pool.draw(99, CPU).batch) == 6


def test_more_samples_than_utterances_start_over(state: TrainState) -> None:
    count = len(state.corpus.train)
    pool = pool_of(state, pool_size=2 * count + 3)
    pool.refresh(state.mirror, 0, CPU)
    assert len(pool.indices) == 2 * count + 3
    assert sorted(pool.indices[:count]) == list(range(count))


def test_the_pass_over_a_sample_repeats_the_free_run_that_made_it(state: TrainState) -> None:
    model: TransformerTTS = state.model.double().eval()
    pool = pool_of(state)
    pool.refresh(state.mirror, 4, CPU)
    drawn = pool.draw(6, CPU)
    batch = drawn.batch
    out = model(
        batch.symbols,
        batch.symbol_lengths,
        batch.mel.double(),
        batch.mel_lengths,
        noise=drawn.noise,
        speakers=batch.speakers,
    )
    torch.testing.assert_close(out.mel_before, batch.mel.double(), rtol=1e-6, atol=1e-6)


def test_free_runs_end_at_the_ratio_of_the_recording(state: TrainState) -> None:
    with torch.no_grad():
        state.model.stop_out.bias.fill_(-50)
    pool = pool_of(state)
    pool.refresh(state.mirror, 4, CPU)
    assert not any(pool.stopped)
    for index, mel in zip(pool.indices, pool.mels, strict=True):
        assert len(mel) == -(-int(pool.dataset.num_frames[index]) * 3 // 2)
    summary = pool.summary(9)
    assert summary["pool/age_steps"] == 5
    assert summary["pool/stopped_fraction"] == 0
    assert summary["pool/length_ratio"] == pytest.approx(1.5, abs=0.02)


def test_its_state_continues_the_draws(state: TrainState) -> None:
    pool, twin = pool_of(state), pool_of(state)
    pool.refresh(state.mirror, 4, CPU)
    pool.draw(4, CPU)
    twin.load_state_dict(pool.state_dict())
    for _ in range(3):
        ours, theirs = pool.draw(5, CPU), twin.draw(5, CPU)
        assert torch.equal(ours.batch.mel, theirs.batch.mel)
        assert torch.equal(ours.noise.utterances, theirs.noise.utterances)
        assert ours.noise.seed == theirs.noise.seed
