"""Whether a text is spoken, while it is being spoken: the way of attention, step by step.

Shapes: n decoder steps at a time, S symbols.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from profforce.sampling.stopping import ARRIVED, NEAR_BEST, first_of_last
from profforce.sampling.way import gains


class Follower:
    """Follows the best way through the text as far as it is known, O(S) a step.

    Attention that comes to the last symbols and goes back into the text was not at its end.
    """

    def __init__(self, *, min_step: int, min_on_way: float) -> None:
        """See :func:`profforce.sampling.stopping.spoken_step`."""
        self._min_step, self._min_on_way = min_step, min_on_way
        self._reached: NDArray[np.float64] | None = None
        self._steps = 0
        self.spoken: int | None = None
        """The step at which attention came to the last symbols; no way is much better than one
        that ends there."""

    def follow(self, alignment: Tensor) -> None:
        """Look at ``alignment [n, S]``, the mean of the guided heads in the next steps."""
        _, gain = gains(alignment)
        first = first_of_last(gain.shape[1])
        at_end = np.nan_to_num(alignment[:, first:].sum(1).cpu().numpy())
        for step, share in zip(gain, at_end, strict=True):
            if self._reached is None:
                self._reached = step
            else:
                self._reached = np.maximum.accumulate(self._reached) + step
            self._steps += 1
            worth = self._reached[first:].max() / self._steps
            if worth < self._reached.max() / self._steps - NEAR_BEST:
                self.spoken = None
            elif self.spoken is None:
                late = self._steps > self._min_step and share >= ARRIVED
                self.spoken = self._steps - 1 if late and worth >= self._min_on_way else None
