"""The monotonic way through an alignment, and where an utterance ends."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.config import SampleConfig
from profforce.sampling.stopping import (
    first_of_last,
    limits_of,
    speech_end,
    spoken_step,
    stop_frame,
)
from profforce.sampling.way import OWN, find_way, stretches
from tests.sampling import utterances as made


def random_alignment(seed: int, steps: int, symbols: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(steps, symbols, generator=generator)).softmax(-1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 5))
def test_the_way_is_the_best_of_all_that_never_go_back(seed: int, steps: int, symbols: int) -> None:
    alignment = random_alignment(seed, steps, symbols)
    padded = np.pad(alignment.double().numpy(), ((0, 0), (1, 1)))
    near = np.minimum(padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:], 1)
    gain = near + OWN * alignment.double().numpy()
    ways = itertools.combinations_with_replacement(range(symbols), steps)
    best = max(sum(gain[u, s] for u, s in enumerate(way)) for way in ways)
    way = find_way(alignment)
    assert (np.diff(way.positions) >= 0).all()
    found = sum(gain[u, s] for u, s in enumerate(way.positions))
    assert found == pytest.approx(best, abs=1e-9)
    assert way.reached[-1].max() == pytest.approx(best, abs=1e-9)
    np.testing.assert_allclose(way.mass, near[np.arange(steps), way.positions])


def test_values_that_are_not_finite_count_as_none() -> None:
    alignment = random_alignment(0, 6, 4)
    alignment[2] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.5])
    assert np.isfinite(find_way(alignment).reached).all()


@given(st.lists(st.booleans()))
def test_stretches_are_where_flags_are_true(flags: list[bool]) -> None:
    found = np.zeros(len(flags), dtype=bool)
    parts = stretches(np.array(flags, dtype=bool))
    for first, last in parts:
        assert first < last
        found[first:last] = True
    assert found.tolist() == flags
    assert all(a[1] < b[0] for a, b in itertools.pairwise(parts))


def test_the_stop_head_is_heard_from_the_least_number_of_frames_on() -> None:
    probability = torch.tensor([0.9, 0.1, 0.6, 0.2])
    assert stop_frame(probability, 0.5, 1) == 1
    assert stop_frame(probability, 0.5, 2) == 3
    assert stop_frame(probability, 0.5, 4) is None
    assert stop_frame(torch.full((3,), float("nan")), 0.5, 1) is None


@given(st.integers(1, 400), st.floats(0.0, 0.2), st.floats(0.2, 2.0), st.floats(20, 200))
def test_limits_follow_the_text(symbols: int, least: float, most: float, rate: float) -> None:
    config = SampleConfig(min_seconds_per_symbol=least, max_seconds_per_symbol=most)
    limits = limits_of(config, symbols, rate)
    assert 1 <= limits.min_frames <= limits.max_frames
    assert limits.max_frames / rate >= max(2.0, symbols * most) - 1e-6
    assert limits.min_frames / rate <= symbols * least + 1 / rate + 1e-6 or limits.min_frames == 1


@pytest.mark.parametrize(("symbols", "first"), [(1, 0), (2, 1), (3, 1), (5, 2), (6, 3), (40, 37)])
def test_last_symbols(symbols: int, first: int) -> None:
    assert first_of_last(symbols) == first


@pytest.mark.parametrize("seed", range(12))
def test_the_text_is_spoken_when_attention_comes_to_its_end_whatever_follows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = made.good_plan(rng)
    arrives = int(np.flatnonzero(plan.at >= plan.num_symbols - 3)[0])
    longer = made.wander(plan, rng)
    for one in (plan, longer):
        step = spoken_step(made.take_of(one, rng).alignment, min_step=2, min_on_way=0.6)
        assert step is not None
        assert abs(step - arrives) * plan.step_s < 0.3
    early = made.take_of(made.early(plan, rng), rng)
    assert spoken_step(early.alignment, min_step=2, min_on_way=0.6) is None
    blurred = made.take_of(made.blur(plan, rng), rng)
    assert spoken_step(blurred.alignment, min_step=2, min_on_way=0.6) is None


def test_speech_ends_where_it_gets_quiet_or_a_little_later() -> None:
    sounding = np.ones(100, dtype=bool)
    ask = {"frames": 2, "max_tail_frames": 20, "tail_frames": 3}
    assert speech_end(sounding, 9, **ask) == 30  # sound without end: half of what is allowed
    sounding[25:27] = False  # too short to be an end
    assert speech_end(sounding, 9, **ask) == 30
    sounding[33:] = False
    assert speech_end(sounding, 9, **ask) == 36
    assert speech_end(sounding[:34], 40, **ask) == 34
    sounding[20:] = False
    assert speech_end(sounding, 9, **ask) == 23
