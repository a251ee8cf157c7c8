"""The recogniser against all segmentations, and on sounds whose letters are known."""

from itertools import groupby, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.evaluation.letters import Templates
from profforce.evaluation.recognise import best_path, recognise


def cost_of(path: tuple[int, ...], costs: np.ndarray, change: float, shortest: int) -> float:
    runs = [len(list(group)) for _, group in groupby(path)]
    if min(runs) < min(shortest, len(path)):
        return float("inf")
    return float(costs[np.arange(len(path)), path].sum()) + change * (len(runs) - 1)


@given(
    frames=st.integers(1, 7),
    kinds=st.integers(2, 3),
    shortest=st.integers(1, 3),
    change=st.floats(0, 2),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_the_best_path_is_the_best_of_all(
    frames: int, kinds: int, shortest: int, change: float, seed: int
) -> None:
    costs = np.random.default_rng(seed).random((frames, kinds))
    found = tuple(best_path(costs, change, shortest))
    every = product(range(kinds), repeat=frames)
    best = min(cost_of(path, costs, change, shortest) for path in every)
    assert len(found) == frames
    assert cost_of(found, costs, change, shortest) == pytest.approx(best)


def test_runs_cover_every_frame_and_say_what_is_there(templates: Templates) -> None:
    order = [3, 7, 3, 20]
    mel = templates.mel[order].repeat_interleave(4, 0)
    runs = recognise(mel, templates)
    assert [run.symbol for run in runs] == [templates.symbols[k] for k in order]
    assert [(run.start, run.stop) for run in runs] == [(0, 4), (4, 8), (8, 12), (12, 16)]


def test_what_lies_below_the_floor_is_not_heard(templates: Templates) -> None:
    mel = templates.mel[[5, 9]].repeat_interleave(3, 0)
    quiet = torch.where(mel <= templates.floor, torch.full_like(mel, -11.5), mel)
    assert recognise(quiet, templates) == recognise(mel, templates)
