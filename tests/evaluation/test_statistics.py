"""Bootstrap intervals: coverage, pairing and what a missing value does."""

import numpy as np
import pytest

from profforce.evaluation.statistics import Estimate, difference_of, mean_of


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        estimate = mean_of(rng.normal(3.0, 1.0, (1, 40)), resamples=400)
        hits += estimate.low <= 3.0 <= estimate.high
    assert 180 <= hits <= 199


def test_an_effect_of_the_seed_widens_the_interval() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(0, 0.1, (4, 50))
    alone, shifted = mean_of(noise), mean_of(noise + rng.normal(0, 1, (4, 1)))
    assert shifted.high - shifted.low > 5 * (alone.high - alone.low)


def test_pairs_see_a_difference_that_means_hide() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(0, 10, (3, 30))
    better = base - 0.5 + rng.normal(0, 0.1, (3, 30))
    assert difference_of(better, base).clear
    means = [mean_of(values) for values in (base, better)]
    assert means[0].low < means[1].mean < means[0].high


def test_the_same_values_give_the_same_interval() -> None:
    values = np.arange(12.0).reshape(3, 4)
    assert mean_of(values) == mean_of(values)
    assert mean_of(values).mean == pytest.approx(values.mean())


def test_missing_values_are_left_out_and_nothing_is_no_number() -> None:
    values = np.array([[1.0, np.nan, 3.0]])
    estimate = mean_of(values)
    assert estimate.mean == 2 and 1 <= estimate.low <= estimate.high <= 3
    nothing = mean_of(np.full((2, 2), np.nan))
    assert np.isnan(nothing.mean) and not nothing.clear
    assert Estimate(1, 0.5, 2).clear and not Estimate(1, -0.5, 2).clear


def test_unlike_tables_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="one shape"):
        difference_of(np.zeros((1, 2)), np.zeros((2, 2)))
