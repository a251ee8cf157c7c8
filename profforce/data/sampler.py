"""Batches of like lengths, a pure function of (seed, epoch), so that resuming needs no state.

Every epoch has the same number of batches, so that one counter tells epoch and position. What is
held is a few numbers an utterance, never an object: ten million utterances begin in seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

POOL_BATCHES = 32
"""Batches, or steps of several, sorted by length together: larger pads less, smaller mixes more."""
CLASS_RATIO = 1.08
"""With a budget of frames: lengths within this ratio are dealt as if they were equal."""


@dataclass(frozen=True)
class Epoch(Sequence[list[int]]):
    """The batches of one epoch, or a part of them; a batch is made when it is asked for."""

    positions: npt.NDArray[Any]
    """Of the utterances, batch after batch as they were dealt."""
    bounds: Numbers
    """Batch ``k`` as dealt is ``positions[bounds[k] : bounds[k + 1]]``."""
    order: npt.NDArray[Any]
    """In which the batches come."""

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, number: int) -> list[int]: ...

    @overload
    def __getitem__(self, number: slice) -> "Epoch": ...

    def __getitem__(self, number: int | slice) -> "list[int] | Epoch":
        """The positions of batch ``number``; a slice (of a rank, of what is left) is an epoch."""
        if isinstance(number, slice):
            return Epoch(self.positions, self.bounds, self.order[number])
        dealt = self.order[number]
        positions: list[int] = self.positions[self.bounds[dealt] : self.bounds[dealt + 1]].tolist()
        return positions

    def __iter__(self) -> Iterator[list[int]]:
        return (self[number] for number in range(len(self)))


class BucketSampler:
    """Deals the positions ``0 .. len(lengths) - 1`` out into batches of like lengths."""

    def __init__(
        self,
        lengths: Sequence[int] | Numbers,
        batch_size: int,
        seed: int,
        *,
        max_frames: int | None = None,
        chunks: Sequence[int] = (),
        together: int = 1,
    ) -> None:
        """Batches of ``batch_size``, the last one excepted, or of at most ``max_frames``.

        Args:
            lengths: one an utterance, of any unit unless there is a budget.
            batch_size: utterances a batch, with a budget at most.
            seed: of every epoch's order.
            max_frames: budget of a batch in the unit of ``lengths``, padding included: its
                utterances times its longest. A longer utterance is a batch of its own.
            chunks: first positions of chunks, 0 excepted, for utterances that are read best from
                one place at a time: a batch never mixes chunks, and one chunk's batches come before
                the next one's.
            together: batches of a step: those numbered ``k * together`` to the next multiple are
                of like lengths, so that none of several processes waits for the longest.
        """
        self.together = together
        for name, value in (("batch_size", batch_size), ("max_frames", max_frames)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self.lengths: Numbers = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.seed = seed
        self.max_frames = max_frames
        self._last: tuple[int, Epoch] | None = None
        """The epoch that was asked for last, which is asked for again and again."""
        edges = [0, *chunks, len(self.lengths)]
        self._chunks = [
            _Chunk(start, self.lengths[start:end], batch_size, max_frames, together)
            for start, end in pairwise(edges)
            if start < end
        ]

    def __len__(self) -> int:
        """Batches an epoch."""
        return sum(len(chunk.ends) for chunk in self._chunks)

    def batch(self, number: int) -> list[int]:
        """Batch ``number`` of all epochs one after the other, counted from 0."""
        epoch, position = divmod(number, len(self))
        return self.batches(epoch)[position]

    def batches(self, epoch: int) -> Epoch:
        """Every position exactly once: the batches of ``epoch`` (>= 0), shuffled."""
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, self._deal(epoch)
        return self._last[1]

    def _deal(self, epoch: int) -> Epoch:
        rng = np.random.default_rng([self.seed, epoch])
        chunks = self._chunks
        if len(chunks) > 1:
            chunks = [chunks[k] for k in rng.permutation(len(chunks))]
        nothing = np.zeros(0, dtype=np.int64)
        positions, bounds, order = [nothing], [np.zeros(1, dtype=np.int64)], [nothing]
        dealt = 0
        for chunk in chunks:
            positions.append(chunk.deal(rng))
            bounds.append(chunk.ends + bounds[-1][-1])
            number = epoch * len(self) + dealt
            order.append(_shuffled(len(chunk.ends), number, self.together, rng) + dealt)
            dealt += len(chunk.ends)
        return Epoch(*(np.concatenate(parts) for parts in (positions, bounds, order)))


def _shuffled(count: int, number: int, together: int, rng: np.random.Generator) -> Numbers:
    """``0 .. count - 1`` in a new order, neighbours staying together from step to step.

    Args:
        count: batches, dealt so that neighbours are alike.
        number: of the first one that comes, over all epochs; steps begin at multiples.
        together: batches a step.
        rng: draws the order.
    """
    edges = np.unique(np.append(np.arange(-number % together, count, together), (0, count)))
    sizes = np.diff(edges)
    place = rng.permutation(len(sizes))
    starts = np.empty_like(sizes)
    by_place = np.argsort(place)
    starts[by_place] = np.cumsum(sizes[by_place]) - sizes[by_place]
    order: Numbers = np.arange(count) - np.repeat(edges[:-1] - starts, sizes)
    return order


class _Chunk:
    """Utterances that are dealt together."""

    def __init__(
        self, start: int, lengths: Numbers, batch_size: int, max_frames: int | None, together: int
    ) -> None:
        self.start, self.lengths = start, lengths
        self.pool_size = batch_size * POOL_BATCHES * together
        self.classes: npt.NDArray[np.int16] | None = None
        """Of each utterance; the longest are class 0."""
        if max_frames is None:
            full = np.arange(batch_size, len(lengths) + batch_size, batch_size)
            self.ends: Numbers = np.minimum(full, len(lengths))
            return
        longest = np.log(max(int(lengths.max(initial=1)), 1))
        steps = (longest - np.log(np.maximum(lengths, 1))) / np.log(CLASS_RATIO)
        self.classes = steps.astype(np.int16)
        self.ends = _packed(self.classes, lengths, batch_size, max_frames)

    def deal(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """The positions in a new order, batch after batch."""
        order = rng.permutation(len(self.lengths))
        if self.classes is not None:
            order = order[np.argsort(self.classes[order], kind="stable")]
        else:
            for first in range(0, len(order), self.pool_size):
                pool = order[first : first + self.pool_size]
                pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        return order + self.start


def _packed(
    classes: npt.NDArray[np.int16], lengths: Numbers, batch_size: int, max_frames: int
) -> Numbers:
    """Ends of the batches of utterances sorted by class, whichever of a class comes first.

    A batch takes as many as there is room for if each is as long as the longest of the class that
    it begins with; the classes after that one are shorter.
    """
    counts = np.bincount(classes)
    longest = np.zeros(len(counts), dtype=np.int64)
    np.maximum.at(longest, classes, lengths)
    ends, taken, last = [], 0, 0
    for count, length in zip(counts.tolist(), longest.tolist(), strict=True):
        last += count
        size = min(batch_size, max(1, max_frames // max(length, 1)))
        while taken < last:
            taken = min(taken + size, len(classes))
            ends.append(taken)
    return np.array(ends, dtype=np.int64)
