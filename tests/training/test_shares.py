"""Shares: batches of a step add up to the step, however it is cut into batches."""

import itertools
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.nn.masks import length_mask, masked_mean
from profforce.training.shares import WHOLE, Shares, counted, divided, weighed

UTTERANCES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=12
)


def cut(rows: list[tuple[int, int, int]], at: list[int]) -> list[list[tuple[int, int, int]]]:
    edges = sorted({0, len(rows), *(k % (len(rows) + 1) for k in at)})
    return [rows[a:b] for a, b in itertools.pairwise(edges)]


def counts_of(rows: list[tuple[int, int, int]], factor: int) -> Shares:
    frames, symbols, free = (np.array(column) for column in zip(*rows, strict=True))
    return counted(frames, symbols, free, factor)


def frame_mean(values: torch.Tensor, rows: list[tuple[int, int, int]], factor: int) -> torch.Tensor:
    lengths = torch.tensor([row[0] for row in rows])
    return masked_mean(values, length_mask(lengths, values.shape[1]))


def cell_mean(values: torch.Tensor, rows: list[tuple[int, int, int]], factor: int) -> torch.Tensor:
    steps = torch.tensor([-(-row[0] // factor) for row in rows])
    symbols = torch.tensor([row[1] for row in rows])
    mask = length_mask(steps, values.shape[1])[:, :, None] & length_mask(symbols, 9)[:, None, :]
    return masked_mean(values[:, :, None].expand(-1, -1, 9), mask)


def pair_mean(values: torch.Tensor, rows: list[tuple[int, int, int]], factor: int) -> torch.Tensor:
    return values[:, 0].mean()


def free_mean(values: torch.Tensor, rows: list[tuple[int, int, int]], factor: int) -> torch.Tensor:
    lengths = torch.tensor([row[2] for row in rows])
    return masked_mean(values, length_mask(lengths, values.shape[1]))


MEANS: dict[str, Callable[..., torch.Tensor]] = {
    "frames": frame_mean,
    "cells": cell_mean,
    "pairs": pair_mean,
    "free_texts": pair_mean,
    "free_frames": free_mean,
}


@given(UTTERANCES, st.lists(st.integers(0, 12), max_size=4), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_means_of_batches_weighed_by_their_shares_are_the_mean_of_all(
    rows: list[tuple[int, int, int]], at: list[int], factor: int
) -> None:
    values = torch.rand(len(rows), 50, generator=torch.Generator().manual_seed(0)).double()
    batches = cut(rows, at)
    shares = divided([counts_of(batch, factor) for batch in batches])
    for name, mean in MEANS.items():
        parts = torch.split(values, [len(batch) for batch in batches])
        total = sum(
            mean(part, batch, factor) * getattr(share, name)
            for part, batch, share in zip(parts, batches, shares, strict=True)
        )
        torch.testing.assert_close(total, mean(values, rows, factor), rtol=1e-12, atol=0)


@given(UTTERANCES, st.integers(1, 4))
def test_a_batch_alone_is_the_whole_to_the_bit(
    rows: list[tuple[int, int, int]], factor: int
) -> None:
    assert divided([counts_of(rows, factor)]) == [WHOLE]


def test_a_step_without_free_runs_has_no_share_of_them() -> None:
    nothing = np.array([], dtype=np.int64)
    counts = counted(np.array([3, 4]), np.array([2, 2]), nothing, 2)
    (share,) = divided([counts])
    assert astuple(share) == (1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def test_readings_are_weighed_with_their_term() -> None:
    term, readings = weighed(torch.tensor(3.0), {"a": torch.tensor(2.0)}, 0.5)
    assert (float(term), float(readings["a"])) == (1.5, 1.0)
    assert weighed(None, {}, 0.5) == (None, {})
