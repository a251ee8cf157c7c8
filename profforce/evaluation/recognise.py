"""Which symbols a mel says: the best path through a loop of templates.

Viterbi's algorithm over one state a kind of symbol (Rabiner 1989, section III.B): a frame costs
its distance from the template, each change of symbol a penalty, and every run lasts
``SHORTEST`` frames. Nothing of the text is known here, so nothing can be read into the sound.

T mel frames, M mel channels, K kinds of symbols.
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from torch import Tensor

from profforce.evaluation.letters import Templates

CHANGE_NEPERS = 0.1
"""Penalty of a change, less than the nearest templates differ by. From 0.02 to 0.2 all of 300
renderings, varied or not, are heard without a mistake; at 0.3 short letters are lost."""
SHORTEST = 2

Costs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A stretch of frames that sounds like one symbol."""

    symbol: str
    start: int
    stop: int
    """First frame after it."""

    @property
    def frames(self) -> int:
        """Its length."""
        return self.stop - self.start


def recognise(mel: Tensor, templates: Templates) -> list[Run]:
    """The runs of ``mel [T, M]``, natural-log amplitude, T >= 1, from its first frame to its last.

    Mean absolute difference of the channels, in nepers, is the cost of a frame.
    """
    heard = mel.detach().cpu().clamp_min(templates.floor)
    costs = (heard[:, None] - templates.mel).abs().mean(-1).double().numpy()
    path = best_path(costs, CHANGE_NEPERS, SHORTEST)
    runs, start = [], 0
    for kind, group in groupby(path):
        stop = start + len(list(group))
        runs.append(Run(templates.symbols[kind], start, stop))
        start = stop
    return runs


def best_path(costs: Costs, change: float, shortest: int) -> list[int]:
    """The cheapest sequence of states for ``costs [T, K]``, each run at least ``shortest`` long.

    Fewer frames than ``shortest`` are one run.
    """
    frames, kinds = costs.shape
    shortest = min(shortest, frames)
    summed = np.concatenate([np.zeros((1, kinds)), costs.cumsum(0)])
    best = np.full((frames + 1, kinds), np.inf)
    """Cheapest way to have said frames [0, t) with a run of k that may end at t."""
    begin = np.zeros((frames + 1, kinds), dtype=np.int64)
    before = np.zeros((frames + 1, kinds), dtype=np.int64)
    for t in range(shortest, frames + 1):
        first = t - shortest
        enter, source = _entries(best[first], change) if first else _start(kinds)
        fresh = enter + summed[t] - summed[first]
        longer = best[t - 1] + costs[t - 1]
        stays = longer <= fresh
        best[t] = np.where(stays, longer, fresh)
        begin[t] = np.where(stays, begin[t - 1], first)
        before[t] = np.where(stays, before[t - 1], source)
    return _traced(int(best[frames].argmin()), frames, begin, before)


def _start(kinds: int) -> tuple[Costs, npt.NDArray[np.int64]]:
    return np.zeros(kinds), np.full(kinds, -1)


def _entries(best: Costs, change: float) -> tuple[Costs, npt.NDArray[np.int64]]:
    """Cheapest change into each state, and where from: never from itself."""
    first, second = np.argsort(best, kind="stable")[:2]
    source = np.full(len(best), first)
    source[first] = second
    return best[source] + change, source


def _traced(
    kind: int, frames: int, begin: npt.NDArray[np.int64], before: npt.NDArray[np.int64]
) -> list[int]:
    path: list[int] = []
    stop = frames
    while stop:
        start, source = int(begin[stop, kind]), int(before[stop, kind])
        path[:0] = [kind] * (stop - start)
        stop, kind = start, source
    return path
