"""Cross-attention that knows where in the text it is, however long the text.

Every decoder step predicts by how many symbols it goes on, never back. The sum of these advances is
the layer's centre, and a symbol's score falls with its distance from it (Graves 2013,
arXiv:1308.0850, section 5; Battenberg et al. 2020, arXiv:1910.10288). Only distances enter, so
that nothing tells the middle of a long text from that of a short one. The sum is a cumulative one
over all steps at once, or a running one: both forms are exact.

Shapes: B batch, U decoder steps, S symbols, D width, H heads.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.config import ModelConfig
from profforce.nn.attention import CrossAttention, Memory

FIRST_SIGMA_SYMBOLS = 2.0
"""Width of the heads before training: wide enough to find the way by content, and to narrow it."""


class Centre(NamedTuple):
    """State of :class:`MonotonicCrossAttention`."""

    symbols: Tensor
    """``[B]``, sum of the advances so far. float64: rounding must not grow with the length, and
    both forms round alike."""


EnterCentre = Callable[[Centre], Centre]
"""Given the sum over a segment's own advances, the centre that the segment starts from."""


class MonotonicCrossAttention(CrossAttention):
    """Content and place: ``q k / sqrt(K) - (n - centre - offset)^2 / (2 sigma^2)``.

    One centre a layer, an offset and a width a head.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        first = config.symbols_per_frame * config.reduction_factor
        self.advance_weight = nn.Parameter(torch.zeros(config.width))
        self.advance_bias = nn.Parameter(torch.full((), math.log(math.expm1(first))))
        self.offset = nn.Parameter(torch.zeros(config.num_heads))
        self.log_sigma = nn.Parameter(
            torch.full((config.num_heads,), math.log(FIRST_SIGMA_SYMBOLS))
        )

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """See :class:`CrossAttention`."""
        return self.attend(x, memory, self._advances(x).cumsum(1))

    def init_state(self, batch: int, num_symbols: int, like: Tensor) -> Centre:
        """Before the first symbol."""
        return Centre(like.new_zeros(batch, dtype=_sum_type(like)))

    def step(
        self, x: Tensor, memory: Memory, state: Centre | None
    ) -> tuple[Tensor, Tensor, Centre]:
        """See :class:`CrossAttention`."""
        advances = self._advances(x[:, None])
        centre = advances if state is None else state.symbols[:, None] + advances
        y, weights = self.attend(x[:, None], memory, centre)
        return y[:, 0], weights[:, :, 0], Centre(centre[:, 0])

    def segment(
        self, x: Tensor, lengths: Tensor, memory: Memory, enter: EnterCentre
    ) -> tuple[Tensor, Tensor, Centre]:
        """See :class:`CrossAttention`."""
        advances = self._advances(x)
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        own = (advances * valid).sum(1)
        before = enter(Centre(own.detach())).symbols
        centre = before[:, None] + advances.cumsum(1)
        return (*self.attend(x, memory, centre), Centre(before + own))

    def place(self, memory: Memory, centre: Tensor) -> Tensor:
        """What places add to the scores, ``[B, H, U, S]``, for ``centre [B, U]``."""
        whole = centre.detach().floor()
        rest = (centre - whole).to(self.offset.dtype)
        whole = whole.to(self.offset.dtype)
        symbols = torch.arange(memory.k.shape[2], device=whole.device, dtype=whole.dtype)
        near = (rest[:, None] + self.offset[:, None])[..., None]
        distance = (symbols - whole[..., None])[:, None] - near  # exact but for the last step
        return -0.5 * (distance * (-self.log_sigma).exp()[:, None, None]).square()

    def attend(self, x: Tensor, memory: Memory, centre: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`CrossAttention.forward` with ``centre [B, U]``."""
        return self.read(self.scores(x, memory) + self.place(memory, centre), memory)

    def _advances(self, x: Tensor) -> Tensor:
        """Symbols by which each step of ``x [B, U, D]`` goes on, ``[B, U]``, not below 0.

        No matrix product, which autocast would round: errors of one sign add up.
        """
        raw = (x * self.advance_weight).sum(-1) + self.advance_bias
        return F.softplus(raw).to(_sum_type(x))


def _sum_type(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64
