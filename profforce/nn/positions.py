"""Sinusoidal positions with a learned scale."""

import math

import torch
from torch import Tensor, nn


def sinusoid(length: int, width: int, *, like: Tensor) -> Tensor:
    """``[length, width]`` sinusoids (Vaswani et al. 2017, section 3.5), on ``like``'s device.

    Computed in float64 and rounded once, so that one row does not depend on ``length``.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(1e4) / width))
    angles = position * rate
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return table.to(device=like.device, dtype=like.dtype)


class ScaledPositions(nn.Module):
    """Adds ``alpha * sinusoid`` (Li et al. 2019, arXiv:1809.08895, section 3.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """``x [B, T, D]`` with positions 0..T-1 added."""
        return x + self.alpha * sinusoid(x.shape[1], x.shape[2], like=x)

    def table(self, length: int, width: int) -> Tensor:
        """``[length, width]``, what :meth:`forward` adds, for the step form."""
        return self.alpha * sinusoid(length, width, like=self.alpha)
