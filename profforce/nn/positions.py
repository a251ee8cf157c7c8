"""Where things are: sinusoidal positions with a learned scale, or distances alone.

Shapes: B batch, T positions, U decoder steps, D width, H heads.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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

    def table(self, length: int, width: int) -> Tensor | None:
        """``[length, width]``, what :meth:`forward` adds, for the step form."""
        return self.alpha * sinusoid(length, width, like=self.alpha)


class NoPositions(nn.Module):
    """Adds nothing: what :class:`ScaledPositions` is where distances alone count."""

    def forward(self, x: Tensor) -> Tensor:
        """``x [B, T, D]`` as it is."""
        return x

    def table(self, length: int, width: int) -> Tensor | None:
        """See :class:`ScaledPositions`."""
        return None


class RecentSteps(nn.Module):
    """Adds to every step a convolution over itself and those before it.

    Order without positions, so that no step is later than any in training. The state is the last
    ``kernel - 1`` inputs.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Parallel form on ``x [B, U, D]``."""
        return self.after(self.init_state(len(x), x), x)[0]

    def after(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Parallel form on a part ``x [B, U, D]`` of the sequence: ``([B, U, D], state)``."""
        seen = torch.cat([state, x], 1)
        y = self.conv(seen.transpose(1, 2)).transpose(1, 2)
        return x + y, seen[:, x.shape[1] :]

    def init_state(self, batch: int, like: Tensor) -> Tensor:
        """``[B, kernel - 1, D]``, before the first step."""
        width, kernel = self.conv.in_channels, self.conv.kernel_size[0]
        return like.new_zeros(batch, kernel - 1, width)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Step form: ``x [B, D]`` -> ``([B, D], state)``, nothing in place."""
        seen = torch.cat([state, x[:, None]], 1)
        y = F.linear(seen.flatten(1), self.matrix(), self.conv.bias)
        return x + y, seen[:, 1:]

    def matrix(self) -> Tensor:
        """``[D, kernel * D]``, the convolution as a linear layer over steps side by side."""
        return self.conv.weight.permute(0, 2, 1).flatten(1)


def distance_slopes(num_heads: int) -> Tensor:
    """``[H]``, what each symbol of distance takes from a score.

    Press et al. 2022, arXiv:2108.12409, here in both directions: from 1, which sees the neighbours,
    to 1/8, which sees some words.
    """
    return 2.0 ** -torch.linspace(0, 3, num_heads)
