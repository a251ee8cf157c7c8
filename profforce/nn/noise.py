"""Dropout noise that depends on (seed, utterance, step, channel) and on nothing else.

Prenet dropout stays on while a model free-runs. Drawn from a counter instead of a stream, the
parallel form, the recurrent form and every batch composition see the same noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x45D9F3B  # below 2^31, so that products of 32-bit values fit int64


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash (two xor-shift-multiply rounds), held in int64."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * _MULTIPLIER) & _MASK
    return x ^ (x >> 16)


@dataclass(frozen=True)
class PrenetNoise:
    """Key of the noise of a batch."""

    seed: int
    utterances: Tensor
    """``[B]`` int64, an identity for each utterance that does not depend on the batch."""

    def key(self, layer: int) -> int:
        """The 32 bits that stand for seed and layer."""
        return (self.seed * 0x9E3779B1 + layer * 0x85EBCA6B) & _MASK

    def keep(self, layer: int, steps: Tensor, width: int, p: float) -> Tensor:
        """Bool ``[B, U, width]``, true with probability ``1 - p``, for ``steps [U]`` int64."""
        device = self.utterances.device
        key = torch.tensor(self.key(layer), device=device)
        rows = _mix((_mix(key) + self.utterances) & _MASK)
        cells = _mix((rows[:, None] + steps.to(device)) & _MASK)
        channels = torch.arange(width, device=device)
        bits = _mix((cells[..., None] + channels) & _MASK)
        return bits >= int(p * 2**32)

    def select(self, rows: Tensor) -> "PrenetNoise":
        """The key of a part of the batch."""
        return PrenetNoise(self.seed, self.utterances[rows])
