"""Prenet: a bottleneck with dropout that stays on at inference (Wang et al. 2017)."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from profforce.nn.noise import PrenetNoise


class Prenet(nn.Module):
    """Linear + ReLU + counter-based dropout, ``num_layers`` times.

    One form serves both views: the step form is the parallel form on one step.
    """

    def __init__(self, inputs: int, width: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        widths = [inputs, *[width] * num_layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, frames: Tensor, noise: PrenetNoise | None, steps: Tensor) -> Tensor:
        """Map ``frames [B, U, F]`` to ``[B, U, width]``.

        ``noise=None`` switches dropout off; ``steps [U]`` int64 are the decoder steps' numbers.
        """
        x = frames
        for number, layer in enumerate(self.layers):
            x = F.relu(layer(x))
            if noise is not None and self.dropout > 0:
                keep = noise.keep(number, steps, x.shape[-1], self.dropout)
                x = x * keep / (1 - self.dropout)
        return x
