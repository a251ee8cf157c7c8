"""Another sample rate for audio that comes in parts."""

import math

import torch
from torch import Tensor

from profforce.audio.files import FILTER_WIDTH, ROLLOFF, resample


class ResampleStream:
    """:func:`profforce.audio.files.resample` in parts, which together are the whole.

    Each part is resampled with as much around it as the filter sees, from a sample on which both
    rates meet.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        common = math.gcd(from_hz, to_hz)
        self._rates = from_hz, to_hz
        self._step, self._made = from_hz // common, to_hz // common
        """Samples of both rates from one meeting to the next."""
        reach = FILTER_WIDTH / ROLLOFF * max(1, from_hz / to_hz)
        self._halo = math.ceil((reach + 1) / self._step) * self._step
        self._kept: Tensor | None = None
        self._done = 0
        """Samples at the beginning of what is kept that have come out."""

    def push(self, audio: Tensor, last: bool) -> Tensor:
        """What is certain with ``audio [n]``, n >= 0; all that is left if last."""
        if self._step == self._made:
            return audio
        kept = audio if self._kept is None else torch.cat([self._kept, audio])
        ready = (len(kept) - self._halo) // self._step * self._step
        if not last and ready <= self._done:
            self._kept = kept
            return kept[:0]
        made = resample(kept, *self._rates) if len(kept) else kept
        begin = self._done // self._step * self._made
        end = len(made) if last else ready // self._step * self._made
        drop = max(ready - self._halo, 0)
        self._kept, self._done = kept[drop:], ready - drop
        return made[begin:end]
