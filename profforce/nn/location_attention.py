"""Location-sensitive attention: by content, and by where it was (Chorowski et al. 2015).

Shapes: B batch, S symbols, D width of query and memory, A of the attention, F filters, K symbols
that a filter sees.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.nn.attention import Memory


class Attended(NamedTuple):
    """Where attention is, and where it was; zeros before the first step."""

    context: Tensor
    """``[B, D]``, what is there."""
    weights: Tensor
    """``[B, S]``, zero on padding."""
    total: Tensor
    """``[B, S]``, the weights of all steps added up."""


class LocationAttention(nn.Module):
    """Additive attention that sees its own weights, the last ones and all of them added up.

    arXiv:1506.07503, equations 8 and 9, and arXiv:1712.05884, section 2.2. The filters and the
    layer behind them are both linear and run as one.
    """

    def __init__(self, width: int, attention_width: int, num_filters: int, kernel: int) -> None:
        """``kernel`` is odd."""
        super().__init__()
        self.query = nn.Linear(width, attention_width, bias=False)
        self.key = nn.Linear(width, attention_width)
        self.filters = nn.Parameter(torch.empty(num_filters, 2 * kernel))
        nn.init.xavier_uniform_(self.filters)
        self.location = nn.Linear(num_filters, attention_width, bias=False)
        self.energy = nn.Linear(attention_width, 1, bias=False)
        self.kernel = kernel

    def memory(self, encoded: Tensor, mask: Tensor) -> Memory:
        """Keys ``[B, 1, S, A]`` and values of ``encoded [B, S, D]`` with ``mask [B, S]``."""
        return Memory(self.key(encoded)[:, None], encoded[:, None], mask[:, None, None])

    def init_state(self, memory: Memory) -> Attended:
        """Before the first step."""
        values = memory.v[:, 0]
        nowhere = values.new_zeros(values.shape[:2])
        return Attended(values.new_zeros(len(values), values.shape[2]), nowhere, nowhere)

    def location_weight(self) -> Tensor:
        """``[A, 2 * K]``, filters and layer in one: made once for many steps."""
        return self.location.weight @ self.filters

    def forward(
        self, query: Tensor, memory: Memory, before: Attended, location: Tensor
    ) -> Attended:
        """One step of ``query [B, D]``.

        A row with no symbol at all gets uniform weights over padding instead of NaN.

        Args:
            query: of this step.
            memory: of :meth:`memory`.
            before: where attention was.
            location: of :meth:`location_weight`.
        """
        seen = F.pad(torch.stack([before.weights, before.total], 1), [self.kernel // 2] * 2)
        around = seen.unfold(2, self.kernel, 1).transpose(1, 2).flatten(2)
        features = F.linear(around, location) + memory.k[:, 0] + self.query(query)[:, None]
        scores = self.energy(features.tanh())[..., 0]
        scores = scores.masked_fill(~memory.mask[:, 0, 0], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        context = (weights[:, None] @ memory.v[:, 0])[:, 0]
        return Attended(context, weights, before.total + weights)
