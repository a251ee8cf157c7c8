"""The sample pool: refreshed by step number, drawn without replacement, resumable."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from profforce.config import FreerunConfig, Precision, TrainConfig
from profforce.data.corpus import Corpus
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.training.pool import SamplePool
from profforce.training.recital import Recital
from profforce.training.state import TrainState

CPU = torch.device("cpu")


@pytest.fixture
def state(config: TrainConfig, corpus: Corpus) -> TrainState:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    return state


def pool_of(state: TrainState, **changes: object) -> SamplePool:
    settings = replace(FreerunConfig(every=5, pool_size=6), **changes)
    return SamplePool(Recital(settings, state.corpus.train, seed=1))


def test_it_is_due_at_the_start_and_every_n_steps(state: TrainState) -> None:
    pool = pool_of(state)
    assert [step for step in range(20) if pool.is_due(step, 4)] == [4, 9, 14, 19]


def test_every_sample_is_drawn_once_before_any_is_drawn_again(state: TrainState) -> None:
    pool = pool_of(state)
    pool.refresh(state.mirror, 4, CPU)
    assert len(set(pool.samples.indices)) == 6
    drawn = [pool.draw(4, CPU).batch.indices.tolist() for _ in range(3)]
    flat = [index for part in drawn for index in part]
    assert sorted(flat[:6]) == sorted(flat[6:]) == sorted(pool.samples.indices)
    assert flat[:6] != flat[6:]
    assert len(pool.draw(99, CPU).batch) == 6


def test_more_samples_than_utterances_start_over(state: TrainState) -> None:
    count = len(state.corpus.train)
    pool = pool_of(state, pool_size=2 * count + 3)
    pool.refresh(state.mirror, 0, CPU)
    assert len(pool.samples.indices) == 2 * count + 3
    assert sorted(pool.samples.indices[:count]) == list(range(count))


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
    assert not any(pool.samples.stopped)
    for index, mel in zip(pool.samples.indices, pool.samples.mels, strict=True):
        assert len(mel) == -(-int(pool.recital.dataset.num_frames[index]) * 3 // 2)
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_precision_makes_a_pool(state: TrainState, precision: str) -> None:
    pool = pool_of(state, precision=Precision(precision))
    pool.refresh(state.mirror, 4, CPU)
    exact = pool_of(state, precision=Precision.float32)
    exact.refresh(state.mirror, 4, CPU)
    assert all(mel.isfinite().all() for mel in pool.samples.mels)
    same = [torch.equal(a, b) for a, b in zip(pool.samples.mels, exact.samples.mels, strict=True)]
    assert all(same) == (precision == "float32")


def test_little_memory_makes_the_same_pool_in_parts(
    state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = pool_of(state), pool_of(state, max_memory_mib=0.02)
    whole.refresh(state.mirror, 4, CPU)
    sizes = []
    inner = Mirror.free_run

    def watch(self: Mirror, symbols: torch.Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(len(symbols))
        return inner(self, symbols, *args, **options)

    monkeypatch.setattr(Mirror, "free_run", watch)
    parts.refresh(state.mirror, 4, CPU)
    assert len(sizes) > 1 and sum(sizes) == 6
    for ours, theirs in zip(parts.samples.mels, whole.samples.mels, strict=True):
        assert torch.equal(ours, theirs)
    assert parts.samples.workspace_mib < whole.samples.workspace_mib
    assert parts.summary(5)["pool/workspace_mib"] == parts.samples.workspace_mib


def run_pool(state: TrainState, pool: SamplePool, steps: range) -> list[list[int]]:
    """Advance and draw while the weights change; made_at, due and a checksum a step."""
    seen = []
    for step in steps:
        pool.advance(state.mirror, step, 3, CPU)
        if pool.samples.mels:
            drawn = pool.draw(2, CPU).batch
            seen.append([step, pool.samples.made_at, pool.samples.due, *drawn.indices.tolist()])
            seen[-1].append(float(drawn.mel.sum()))
        with torch.no_grad():
            state.model.mel_out.bias.add_(0.01)
    return seen


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("stop", [2, 6, 7, 11])
def test_a_refresh_ahead_of_need_is_the_same_however_long_it_takes_and_where_one_resumes(
    config: TrainConfig, corpus: Corpus, ahead: int, stop: int
) -> None:
    def fresh() -> TrainState:
        state = TrainState(config, corpus, CPU)
        state.set_mel_statistics()
        return state

    state = fresh()
    whole = run_pool(state, pool_of(state, ahead=ahead), range(15))
    assert {(step - made, due - made) for step, made, due, *_ in whole if step == due} == {
        (ahead, ahead)
    }
    state = fresh()
    first, second = pool_of(state, ahead=ahead), pool_of(state, ahead=ahead)
    begun = run_pool(state, first, range(stop))
    second.load_state_dict(first.state_dict())
    assert begun + run_pool(state, second, range(stop, 15)) == whole


def test_a_run_resumed_without_what_was_begun_refreshes_when_due(state: TrainState) -> None:
    pool = pool_of(state, ahead=2)
    assert pool.advance(state.mirror, 7, 3, CPU)
    assert (pool.samples.made_at, pool.samples.due) == (7, 7)
