"""The way of an utterance through its text: where attention rests, never going back.

Shapes: U decoder steps, S symbols.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

ATTENDED = 0.25
"""Share of a step's attention, with the two neighbours, from which a symbol counts as attended."""
OWN = 1e-3
"""What a symbol's own share counts beside that of the three: it settles ties only."""


@dataclass(frozen=True)
class Way:
    """The best monotonic path through an alignment."""

    positions: NDArray[np.int64]
    """``[U]``, never falling."""
    mass: NDArray[np.float64]
    """``[U]``, share of the attention within one symbol of the position."""
    focus: NDArray[np.float64]
    """``[U]``, the most that any three neighbouring symbols get, on the way or off it."""
    reached: NDArray[np.float64]
    """``[U, S]``, mass of the best path that is at this symbol after this step."""

    @property
    def num_symbols(self) -> int:
        """S"""
        return int(self.reached.shape[1])

    def attended(self) -> NDArray[np.bool_]:
        """``[S]``: symbols that the way passed, within one, at a step that attended them."""
        found = np.zeros(self.num_symbols + 2, dtype=bool)
        for shift in range(3):
            found[self.positions[self.mass >= ATTENDED] + shift] = True
        return found[1:-1]


def find_way(alignment: Tensor) -> Way:
    """The path through ``alignment [U, S]`` that meets the most attention.

    It starts and ends anywhere, stays or goes forward by any number of symbols at each step, and
    gains at each what it finds within one symbol (dynamic programming, O(U S)): so a few steps
    where attention looks elsewhere do not bend it, and its argmax may flicker.

    Args:
        alignment: weights, U >= 1 and S >= 1; values that are not finite count as 0.
    """
    near, gain = gains(alignment)
    num_steps, num_symbols = gain.shape
    reached = np.empty_like(gain)
    came_from = np.zeros(gain.shape, dtype=np.int64)
    reached[0] = gain[0]
    for step in range(1, num_steps):
        before = reached[step - 1]
        best = np.maximum.accumulate(before)
        came_from[step] = np.maximum.accumulate(np.where(before >= best, np.arange(num_symbols), 0))
        reached[step] = best + gain[step]
    positions = np.empty(num_steps, dtype=np.int64)
    positions[-1] = reached[-1].argmax()
    for step in range(num_steps - 1, 0, -1):
        positions[step - 1] = came_from[step, positions[step]]
    mass = near[np.arange(num_steps), positions]
    return Way(positions, mass, near.max(1), reached)


def gains(alignment: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``[U, S]`` each: the attention within one symbol, and what a path gains by being there."""
    weights = np.nan_to_num(alignment.double().cpu().numpy(), posinf=0.0, neginf=0.0)
    padded = np.pad(weights, ((0, 0), (1, 1)))
    near = np.minimum(padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:], 1.0)
    return near, near + OWN * weights


def stretches(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where ``flags [N]`` are true: ``(first, last + 1)`` of each stretch, in order."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
