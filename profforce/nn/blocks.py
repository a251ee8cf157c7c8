"""Pre-norm Transformer blocks; the decoder block in both forms.

Shapes: B batch, U decoder steps, S symbols, D width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.config import Activation, CrossAttentionKind, ModelConfig
from profforce.nn.attention import (
    CrossAttention,
    EncoderSelfAttention,
    EnterState,
    Memory,
    build_self_attention,
)
from profforce.nn.forward import ForwardCrossAttention
from profforce.nn.monotonic import MonotonicCrossAttention

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.relu: F.relu,
    Activation.gelu: F.gelu,
    Activation.silu: F.silu,
}


CROSS_ATTENTION: dict[CrossAttentionKind, type[CrossAttention]] = {
    CrossAttentionKind.content: CrossAttention,
    CrossAttentionKind.monotonic: MonotonicCrossAttention,
    CrossAttentionKind.forward: ForwardCrossAttention,
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


class BlockState(NamedTuple):
    """State of a decoder block."""

    attention: Any
    """Of self-attention."""
    cross: Any
    """Of cross-attention: () where it has none."""


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention and feed-forward.

    Pre-norm, or ReZero: residual gates starting at zero instead of norms (Bachlechner et al.
    2020, arXiv:2003.04887).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = build_self_attention(config)
        self.cross = CROSS_ATTENTION[config.cross_attention](config)
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
        x = x + self._gate(0, self.dropout(self.attention(self.norms[0](x), lengths)))
        y, weights = self.cross(self.norms[1](x), memory)
        return self._onwards(x, y), weights

    def segment(
        self, x: Tensor, lengths: Tensor, memory: Memory, enter: EnterState
    ) -> tuple[Tensor, Tensor, list[Any]]:
        """:meth:`forward` on a part of the sequence; see :meth:`SelfAttention.segment`.

        Returns:
            ``([B, U, D], weights [B, H, U, S], states after the part)``, a state for each call of
            ``enter``, in their order.
        """
        y, after = self.attention.segment(self.norms[0](x), lengths, enter)
        x = x + self._gate(0, self.dropout(y))
        y, weights, place = self.cross.segment(self.norms[1](x), lengths, memory, enter)
        states = [after] if place is None else [after, place]
        return self._onwards(x, y), weights, states

    def traced_step(self, x: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any]:
        """``x [B, D]`` -> ``([B, D], state)``: :meth:`forward` one by one, with gradients.

        In training mode with its dropout, drawn anew for every step.
        """
        attention, place = (None, None) if state is None else state
        y, attention = self.attention.traced_step(self.norms[0](x), attention)
        x = x + self._gate(0, self.dropout(y))
        y, _, place = self.cross.step(self.norms[1](x), memory, place)
        return self._onwards(x, y), BlockState(attention, place)

    def _onwards(self, x: Tensor, y: Tensor) -> Tensor:
        """The rest of the block, from what cross-attention gave."""
        x = x + self._gate(1, self.dropout(y))
        return x + self._gate(2, self.dropout(self.feedforward(self.norms[2](x))))

    def init_state(self, batch: int, max_steps: int, num_symbols: int, like: Tensor) -> BlockState:
        """State before the first of at most ``max_steps`` steps over ``num_symbols``."""
        return BlockState(
            self.attention.init_state(batch, max_steps, like),
            self.cross.init_state(batch, num_symbols, like),
        )

    def step(
        self, x: Tensor, state: BlockState, memory: Memory, t: int
    ) -> tuple[Tensor, BlockState, Tensor]:
        """``x [B, D]`` -> ``([B, D], state, weights [B, H, S])``: :meth:`forward` one by one.

        Called in evaluation mode (the mirror sees to it), where dropout is the identity.
        """
        y, attention = self.attention.step(self.norms[0](x), state.attention, t)
        x = x + self._gate(0, y)
        y, weights, place = self.cross.step(self.norms[1](x), memory, state.cross)
        x = x + self._gate(1, y)
        x = x + self._gate(2, self.feedforward(self.norms[2](x)))
        return x, BlockState(attention, place), weights
