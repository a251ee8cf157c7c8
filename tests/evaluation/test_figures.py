"""Means of figures that some utterances lack, and how they are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profforce.evaluation.evaluate import kinds_of
from profforce.evaluation.figures import (
    FIGURES,
    difference_over,
    mean_over,
    measured,
    number,
    with_interval,
)
from profforce.evaluation.statistics import Estimate

BY_KEY = {figure.key: figure for figure in FIGURES}
ROWS = [{"failed": 1.0, "f0_semitones": None}, {"failed": 0.0, "f0_semitones": 3.0}]
VALUES = st.lists(st.floats(-100, 100), min_size=1, max_size=8)


def test_a_missing_figure_counts_nowhere() -> None:
    assert mean_over(ROWS, "f0_semitones").mean == 3.0
    assert math.isnan(mean_over(ROWS, "mcd_free_db").mean)
    assert [figure.key for figure in measured(ROWS)] == ["failed", "f0_semitones"]


def test_numbers_as_people_read_them() -> None:
    assert number(BY_KEY["failed"], 0.125) == "12.5%"
    assert number(BY_KEY["failed"], None) == number(BY_KEY["failed"], math.nan) == "-"
    assert with_interval(BY_KEY["failed"], mean_over(ROWS, "failed")) == "50.0% [0.0%, 100.0%]"
    assert with_interval(BY_KEY["failed"], mean_over(ROWS, "none")) == "-"
    assert number(BY_KEY["mcd_gap_db"], -0.001) == "0.00"
    nothing = with_interval(BY_KEY["mcd_gap_db"], Estimate(-0.001, -0.004, 0.004), "+")
    assert nothing == "+0.00 [+0.00, +0.00]"


@given(values=VALUES, shift=st.floats(-50, 50))
def test_a_shift_of_every_utterance_is_the_difference(values: list[float], shift: float) -> None:
    """Paired, its interval is a point, however far utterances lie apart."""
    rows, shifted = ([{"x": v + s} for v in values] for s in (0.0, shift))
    found = difference_over(shifted, rows, "x")
    assert (found.mean, found.low, found.high) == pytest.approx((shift,) * 3, abs=1e-6)


@given(values=VALUES)
def test_a_mean_lies_in_its_interval_and_the_interval_in_the_range(values: list[float]) -> None:
    found = mean_over([{"x": v} for v in values], "x")
    assert min(values) - 1e-6 <= found.low <= found.high <= max(values) + 1e-6


def test_an_utterance_counts_once_for_each_kind() -> None:
    rows = [
        {"faults": [{"kind": "skipping"}, {"kind": "skipping"}]},
        {"faults": [{"kind": "babbling"}, {"kind": "skipping"}]},
        {"faults": [{"kind": "astray"}]},
        {"faults": []},
    ]
    assert list(kinds_of(rows).items()) == [("skipping", 2), ("astray", 1), ("babbling", 1)]
