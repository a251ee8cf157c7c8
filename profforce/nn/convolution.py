"""Masked convolution stacks: padding never leaks into valid frames."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


class ConvStack(nn.Module):
    """Convolutions over time, each followed by layer norm, activation and dropout.

    Layer norm over channels replaces batch norm, so that an utterance alone equals the same
    utterance in any batch. The input is masked before each convolution.
    """

    def __init__(
        self,
        widths: list[int],
        kernel: int,
        *,
        dropout: float,
        tanh: bool = False,
        linear_last: bool = False,
    ) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.convs = nn.ModuleList(nn.Conv1d(a, b, kernel, padding=kernel // 2) for a, b in pairs)
        plain = len(pairs) - 1 if linear_last else len(pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(b) for _, b in pairs[:plain])
        self.dropout = nn.Dropout(dropout)
        self.tanh = tanh

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map ``x [B, T, C]`` to ``[B, T, C']``, zero where ``mask [B, T]`` is false."""
        gate = mask[..., None].to(x.dtype)
        for number, conv in enumerate(self.convs):
            x = conv((x * gate).transpose(1, 2)).transpose(1, 2)
            if number < len(self.norms):
                x = self.norms[number](x)
                x = self.dropout(x.tanh() if self.tanh else F.relu(x))
        return x * gate
