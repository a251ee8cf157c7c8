"""Pre-norm Transformer blocks; the decoder block in both forms.

Shapes: B batch, U decoder steps, S symbols, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.config import Activation, ModelConfig
from profforce.kernels.state import LinearState
from profforce.nn.attention import (
    CrossAttention,
    EncoderSelfAttention,
    EnterState,
    Memory,
    build_self_attention,
)

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.relu: F.relu,
    Activation.gelu: F.gelu,
    Activation.silu: F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers with the chosen activation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.feedforward_width)
        self.outer = nn.Linear(config.feedforward_width, config.width)
        self.activation_name = str(config.activation)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` -> ``[..., D]``."""
        return self.outer(self.dropout(self.activation(self.inner(x))))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward over symbols, pre-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = EncoderSelfAttention(config)
        self.norm_feedforward = nn.LayerNorm(config.width)
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, S, D]``, ``mask [B, S]`` -> ``[B, S, D]``."""
        x = x + self.dropout(self.attention(self.norm_attention(x), mask))
        return x + self.dropout(self.feedforward(self.norm_feedforward(x)))  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention and feed-forward.

    Pre-norm, or ReZero: residual gates starting at zero instead of norms (Bachlechner et al.
    2020, arXiv:2003.04887).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = build_self_attention(config)
        self.cross = CrossAttention(config)
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)
        self.norms = nn.ModuleList(
            nn.Identity() if config.rezero else nn.LayerNorm(config.width) for _ in range(3)
        )
        self.gates = nn.Parameter(torch.zeros(3)) if config.rezero else None

    def _gate(self, number: int, x: Tensor) -> Tensor:
        return x if self.gates is None else x * self.gates[number]

    def forward(self, x: Tensor, lengths: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """``x [B, U, D]``, ``lengths [B]`` -> ``([B, U, D], weights [B, H, U, S])``."""
        return self._onwards(x, self.attention(self.norms[0](x), lengths), memory)

    def segment(
        self, x: Tensor, lengths: Tensor, memory: Memory, enter: EnterState
    ) -> tuple[Tensor, Tensor, LinearState]:
        """:meth:`forward` on a part of the sequence; see :meth:`SelfAttention.segment`."""
        y, after = self.attention.segment(self.norms[0](x), lengths, enter)
        return (*self._onwards(x, y, memory), after)

    def traced_step(self, x: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any]:
        """``x [B, D]`` -> ``([B, D], state)``: :meth:`forward` one by one, with gradients.

        In training mode with its dropout, drawn anew for every step.
        """
        y, state = self.attention.traced_step(self.norms[0](x), state)
        x, _ = self._onwards(x[:, None], y[:, None], memory)
        return x[:, 0], state

    def _onwards(self, x: Tensor, y: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """The rest of the block, from what self-attention gave."""
        x = x + self._gate(0, self.dropout(y))
        y, weights = self.cross(self.norms[1](x), memory)
        x = x + self._gate(1, self.dropout(y))
        y = self.feedforward(self.norms[2](x))
        return x + self._gate(2, self.dropout(y)), weights

    def step(self, x: Tensor, state: Any, memory: Memory, t: int) -> tuple[Tensor, Any, Tensor]:
        """``x [B, D]`` -> ``([B, D], state, weights [B, H, S])``: :meth:`forward` one by one.

        Called in evaluation mode (the mirror sees to it), where dropout is the identity.
        """
        y, state = self.attention.step(self.norms[0](x), state, t)
        x = x + self._gate(0, y)
        y, weights = self.cross.step(self.norms[1](x), memory)
        x = x + self._gate(1, y)
        return x + self._gate(2, self.feedforward(self.norms[2](x))), state, weights
