"""Which N and G to take: laws that hold whatever the machine measured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profforce.bench.refresh import Times, choice, grid, recommend

milliseconds = st.floats(0.01, 1e5)
shares = st.floats(0.005, 0.6)
measured = st.builds(
    Times,
    teacher_forcing=milliseconds,
    professor_forcing=milliseconds,
    generate=st.dictionaries(st.integers(1, 512), milliseconds, min_size=1, max_size=5),
    used_a_step=st.integers(1, 64),
    interval=st.integers(1, 8),
    ahead=st.integers(0, 20),
).filter(lambda times: times.professor_forcing >= times.teacher_forcing)


def test_the_figures_of_one_pair() -> None:
    times = Times(100.0, 190.0, {64: 200.0}, used_a_step=4)
    pair = choice(times, 20, 64)
    assert pair.ms_a_step == pytest.approx(200)
    assert pair.ratio == pytest.approx(2)
    assert pair.generating == pytest.approx(0.05)
    assert pair.uses == pytest.approx(20 * 4 / 64)
    assert (pair.mean_staleness, pair.max_staleness) == (9.5, 19)


def test_the_figures_where_every_fourth_step_is_forced() -> None:
    times = Times(100.0, 180.0, {64: 200.0}, used_a_step=4, interval=4, ahead=3)
    pair = choice(times, 20, 64)
    assert pair.ms_a_step == pytest.approx(100 + 80 / 4 + 200 / 20)
    assert pair.uses == pytest.approx(5 * 4 / 64)
    assert (pair.mean_staleness, pair.max_staleness) == (8 + 3, 16 + 3), "ages 0, 4, ... 16"
    assert choice(times, 2, 64).max_staleness == 0 + 3, "each forced step has a new pool"
    assert recommend(times, 0.05, 1.0).every == 64


@given(st.integers(1, 40), st.integers(1, 8))
def test_staleness_is_that_of_the_loop(every: int, interval: int) -> None:
    times = Times(1.0, 2.0, {1: 1.0}, used_a_step=1, interval=interval)
    ages = [step % every for step in range(0, every * interval, interval)]
    pair = choice(times, every, 1)
    assert pair.max_staleness == max(ages)
    assert pair.mean_staleness == pytest.approx(sum(ages) / len(ages))


def test_the_freshest_samples_within_both_limits() -> None:
    # 16 last for 4 steps, which 5 % allows 40 ms for; 64 for 16 steps and 160 ms
    times = Times(100.0, 190.0, {16: 50.0, 64: 100.0, 256: 300.0}, used_a_step=4)
    best = recommend(times, 0.05, 1.0)
    assert (best.every, best.pool_size, best.uses) == (16, 64, 1)
    often = recommend(times, 0.05, 2.0)
    assert (often.every, often.pool_size, often.uses) == (8, 16, 2)
    assert recommend(times, 0.5, 1.0).every == 4


def test_where_no_pair_keeps_both_limits_the_budget_is_kept() -> None:
    times = Times(100.0, 190.0, {16: 1000.0, 64: 2000.0}, used_a_step=4)
    best = recommend(times, 0.05, 1.0)
    assert (best.every, best.pool_size) == (200, 64)
    assert best.uses == pytest.approx(12.5) and best.generating <= 0.05


@given(measured, shares, st.floats(0.1, 8))
def test_generating_stays_within_the_budget(times: Times, budget: float, uses: float) -> None:
    assert recommend(times, budget, uses).generating <= budget


@given(measured, shares, st.floats(0.1, 8), st.data())
def test_no_fresher_pair_keeps_both_limits(
    times: Times, budget: float, uses: float, data: st.DataObject
) -> None:
    """Nor one that wastes no more than a rounded N does."""
    best = recommend(times, budget, uses)
    size = data.draw(st.sampled_from(sorted(times.generate)))
    every = int(uses * size / times.used_a_step) * times.interval
    if every > times.ahead and choice(times, every, size).generating <= budget:
        assert best.every <= every
        assert best.every > times.ahead


@given(measured, st.integers(1, 100), st.data())
def test_rarer_is_cheaper_and_staler(times: Times, every: int, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(sorted(times.generate)))
    often, rare = choice(times, every, size), choice(times, every + 1, size)
    assert rare.ms_a_step <= often.ms_a_step and rare.generating <= often.generating
    assert rare.uses > often.uses and often.ms_a_step >= times.without_generating
    twice = choice(times, 2 * every, size)
    assert twice.mean_staleness >= often.mean_staleness


@given(measured, shares)
def test_the_grid_shows_the_recommendation(times: Times, budget: float) -> None:
    best = recommend(times, budget, 1.0)
    pairs = grid(times, best)
    assert best in pairs and len(pairs) == len({(p.every, p.pool_size) for p in pairs})
    assert {pair.pool_size for pair in pairs} == set(times.generate)
    assert all(math.isfinite(pair.ratio) for pair in pairs)
