"""What the recurrent view carries from step to step, and what a step yields.

Shapes: B batch, S symbols, R reduction factor, M mel channels, D width, G guided heads.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from profforce.nn.attention import AttentionWindow, Memory
from profforce.nn.noise import PrenetNoise


@dataclass(frozen=True)
class MirrorState:
    """All that a free run carries from step to step; every tensor has the batch first."""

    t: int
    """Number of the next decoder step."""
    frames: Tensor
    """``[B, R * M]``, normalised frames of the last step; zeros before the first."""
    layers: tuple[Any, ...]
    """State of each decoder layer."""
    memories: tuple[Memory, ...]
    """Keys and values of each layer's cross-attention."""
    positions: Tensor | None
    """``[max_steps, D]``, what the decoder adds at each step; None for nothing."""
    noise: PrenetNoise | None
    recent: Tensor | None = None
    """State of :class:`RecentSteps`, where the model has them."""
    window: AttentionWindow | None = None
    """Hold the guided heads to it."""
    rests: Tensor | None = None
    """``[B]`` int64, symbol on which they rested last; with a window only."""

    def select(self, rows: Tensor) -> "MirrorState":
        """The state of some utterances of the batch; ``rows`` int64 indices."""
        return replace(
            self,
            frames=self.frames[rows],
            layers=tuple(_select(layer, rows) for layer in self.layers),
            memories=tuple(_select(memory, rows) for memory in self.memories),
            noise=self.noise.select(rows) if self.noise else None,
            recent=None if self.recent is None else self.recent[rows],
            rests=None if self.rests is None else self.rests[rows],
        )

    def within(self, window: AttentionWindow | None) -> "MirrorState":
        """The same state with the guided heads held to ``window``, from the first symbol on."""
        rests = torch.zeros(len(self.frames), dtype=torch.int64, device=self.frames.device)
        return replace(self, window=window, rests=None if window is None else rests)

    def rested(self, alignments: Tensor) -> Tensor | None:
        """``rests`` after a step with ``alignments [B, G, S]``: forwards only."""
        if self.rests is None:
            return None
        return torch.maximum(self.rests, alignments.mean(1).argmax(-1))


@dataclass(frozen=True)
class StepOutput:
    """One decoder step: R frames for each utterance."""

    frames: Tensor
    """``[B, R, M]``, normalised, before the postnet."""
    stop_logits: Tensor
    """``[B, R]``"""
    alignments: Tensor
    """``[B, G, S]``"""
    hidden: Tensor
    """``[B, D]``"""


def _select(value: Any, rows: Tensor) -> Any:
    """Index every tensor of a (possibly nested) tuple along its first axis."""
    if isinstance(value, Tensor):
        return value[rows]
    parts = [_select(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
