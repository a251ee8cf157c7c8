"""Batches of like lengths, a pure function of (seed, epoch), so that resuming needs no state."""

from collections.abc import Sequence

import numpy as np

POOL_BATCHES = 32
"""Batches sorted by length together: larger pads less, smaller mixes more."""


class BucketSampler:
    """Deals the positions ``0 .. len(lengths) - 1`` out into batches of like lengths."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        """``lengths``: of any unit, one an utterance. Only an epoch's last batch may be short."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-len(self.lengths) // self.batch_size)

    def batches(self, epoch: int) -> list[list[int]]:
        """Every position exactly once: the batches of ``epoch`` (>= 0), shuffled."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        dealt: list[list[int]] = []
        pool_size = self.batch_size * POOL_BATCHES
        for start in range(0, len(order), pool_size):
            pool = order[start : start + pool_size]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            dealt.extend(
                pool[first : first + self.batch_size].tolist()
                for first in range(0, len(pool), self.batch_size)
            )
        return [dealt[position] for position in rng.permutation(len(dealt))]
