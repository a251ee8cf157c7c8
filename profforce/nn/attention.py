"""Attention layers, each with its parallel form and its step form side by side.

Shapes: B batch, U decoder steps, S symbols, D width, H heads, K head width.
A step form equals the parallel form in evaluation mode, frame by frame; it never applies the
dropout of training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.config import ModelConfig, PositionsKind
from profforce.errors import UserError, did_you_mean
from profforce.kernels.ops import causal_linear_attention, causal_linear_step
from profforce.kernels.state import LinearState, empty_state
from profforce.nn.positions import distance_slopes

EnterState = Callable[[Any], Any]
"""Given the sums over a segment's own keys, the state that the segment starts from."""


class SelfAttention(nn.Module):
    """Interface of causal self-attention. A layer joins the mirror by giving the first three.

    :meth:`segment` is what ``trainer.segment_steps`` needs, :meth:`traced_step` what
    ``method=through_time`` needs, ``steps_on_device`` what a CUDA graph needs.
    """

    steps_on_device: ClassVar[bool] = False
    """Whether :meth:`step` also takes ``t`` as an int64 tensor ``[]`` and then reads no value, so
    that a CUDA graph can repeat it. A class says so for itself: it is not inherited."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Parallel form: ``x [B, U, D]``, ``lengths [B]`` -> ``[B, U, D]``, causal."""
        raise NotImplementedError

    def init_state(self, batch: int, max_steps: int, like: Tensor) -> Any:
        """State before the first step: tensors with the batch first, fixed in shape."""
        raise NotImplementedError

    def step(self, x: Tensor, state: Any, t: int | Tensor) -> tuple[Tensor, Any]:
        """Step form: ``x [B, D]`` at step ``t`` -> ``([B, D], state)``; may update in place."""
        raise NotImplementedError

    def segment(self, x: Tensor, lengths: Tensor, enter: EnterState) -> tuple[Tensor, LinearState]:
        """Parallel form on a part of the sequence, for a layer whose state is a sum over keys.

        Args:
            x: ``[B, U, D]``, the part.
            lengths: ``[B]``, steps of the part that are valid; 0 allowed.
            enter: called once.

        Returns:
            ``([B, U, D], state after the part)``, differentiable also in what ``enter`` returned.
        """
        raise NotImplementedError

    def traced_step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Step form with gradients, nothing in place: ``x [B, D]``; None before the first step."""
        raise NotImplementedError


class LinearSelfAttention(SelfAttention):
    """Causal linear attention with one fused qkv projection and a state of constant size."""

    steps_on_device = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.feature_map = str(config.feature_map)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """See :class:`SelfAttention`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        y, _ = causal_linear_attention(q, k, v, lengths=lengths, feature_map=self.feature_map)
        return self.out(y.flatten(2))  # type: ignore[no-any-return]

    def init_state(self, batch: int, max_steps: int, like: Tensor) -> LinearState:
        """See :class:`SelfAttention`; its size does not depend on ``max_steps``."""
        width = self.out.in_features // self.num_heads
        return empty_state(batch, self.num_heads, width, width, like=like)

    def step(self, x: Tensor, state: LinearState, t: int | Tensor) -> tuple[Tensor, LinearState]:
        """See :class:`SelfAttention`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)
        y, state = causal_linear_step(q, k, v, state, feature_map=self.feature_map)
        return self.out(y.flatten(1)), state

    def segment(self, x: Tensor, lengths: Tensor, enter: EnterState) -> tuple[Tensor, LinearState]:
        """See :class:`SelfAttention`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        attend = partial(causal_linear_attention, lengths=lengths, feature_map=self.feature_map)
        with torch.no_grad():  # by the kernel once more: as exact on every device, padding masked
            _, own = attend(q, k, v)
        y, after = attend(q, k, v, state=enter(own))
        return self.out(y.flatten(2)), after

    def traced_step(self, x: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
        """See :class:`SelfAttention`."""
        q, k, v = self.qkv(x)[:, None].unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        y, state = causal_linear_attention(q, k, v, state=state, feature_map=self.feature_map)
        return self.out(y.flatten(1)), state


class KeyValueCache(NamedTuple):
    """Keys and values of the steps so far, preallocated ``[B, H, max_steps, K]``."""

    k: Tensor
    v: Tensor


class SoftmaxSelfAttention(SelfAttention):
    """Causal softmax attention with one fused qkv projection and a preallocated KV cache.

    Padding needs no mask of its own: padded keys lie after every valid query.
    """

    steps_on_device = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """See :class:`SelfAttention`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def init_state(self, batch: int, max_steps: int, like: Tensor) -> KeyValueCache:
        """See :class:`SelfAttention`."""
        width = self.out.in_features // self.num_heads
        shape = (batch, self.num_heads, max_steps, width)
        return KeyValueCache(like.new_zeros(shape), like.new_zeros(shape))

    def step(
        self, x: Tensor, state: KeyValueCache, t: int | Tensor
    ) -> tuple[Tensor, KeyValueCache]:
        """See :class:`SelfAttention`; a ``t`` on the device reads the whole cache, masked."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)
        if isinstance(t, Tensor):
            for cache, new in zip(state, (k, v), strict=True):
                cache.index_copy_(2, t.reshape(1), new[:, :, None])
            seen = torch.arange(state.k.shape[2], device=x.device)[None] <= t
            y = F.scaled_dot_product_attention(q[:, :, None], state.k, state.v, attn_mask=seen)
            return self.out(y[:, :, 0].flatten(1)), state
        state.k[:, :, t] = k
        state.v[:, :, t] = v
        y = F.scaled_dot_product_attention(
            q[:, :, None], state.k[:, :, : t + 1], state.v[:, :, : t + 1]
        )
        return self.out(y[:, :, 0].flatten(1)), state

    def traced_step(self, x: Tensor, state: KeyValueCache | None) -> tuple[Tensor, KeyValueCache]:
        """See :class:`SelfAttention`; the cache grows, and autograd keeps each of its sizes."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, 1, -1)).unbind(1)
        if state is not None:
            k, v = torch.cat([state.k, k], 2), torch.cat([state.v, v], 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y[:, :, 0].flatten(1)), KeyValueCache(k, v)


SelfAttentionFactory = Callable[[ModelConfig], SelfAttention]
_SELF_ATTENTION: dict[str, SelfAttentionFactory] = {
    "linear": LinearSelfAttention,
    "softmax": SoftmaxSelfAttention,
}


def register_self_attention(name: str, factory: SelfAttentionFactory) -> None:
    """Let ``model.attention=name`` build ``factory(model_config)``.

    Raises:
        ValueError: if the name is taken by another factory.
    """
    if _SELF_ATTENTION.setdefault(name, factory) is not factory:
        raise ValueError(f"self-attention '{name}' is registered already")


def build_self_attention(config: ModelConfig) -> SelfAttention:
    """The decoder self-attention that ``config.attention`` names.

    Raises:
        UserError: for an unknown name.
    """
    if config.attention not in _SELF_ATTENTION:
        raise UserError(
            f"no self-attention '{config.attention}'"
            + did_you_mean(config.attention, _SELF_ATTENTION),
            where="model.attention",
            expected=f"one of {', '.join(_SELF_ATTENTION)}",
        )
    return _SELF_ATTENTION[config.attention](config)


class Memory(NamedTuple):
    """Cross-attention's keys and values of one utterance batch, computed once."""

    k: Tensor
    """``[B, H, S, K]``"""
    v: Tensor
    """``[B, H, S, K]``"""
    mask: Tensor
    """``[B, 1, 1, S]`` bool, true on symbols."""


@dataclass(frozen=True)
class AttentionWindow:
    """Symbols that a step may attend, around the one where the last step rested.

    Forward attention in its plainest form (Zhang et al. 2018, arXiv:1807.06736).
    """

    ahead: int
    back: int

    def mask(self, rests: Tensor, live: Tensor) -> Tensor:
        """``rests [B]`` int64, ``live [B, S]`` true on symbols -> bool ``[B, S]``, never empty.

        At the end of the text the window stays on its last symbols.
        """
        place = torch.arange(live.shape[1], device=live.device)
        last = (live.sum(1) - 1).clamp(min=0)
        at = torch.minimum(rests, last)[:, None]
        return (place >= at - self.back) & (place <= at + self.ahead) & live


class CrossAttention(nn.Module):
    """Softmax attention of decoder steps over encoded symbols, with fused kv."""

    in_segments: ClassVar[bool] = True
    """Whether :meth:`segment` works: whether the state, if there is one, is a sum over steps."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q = nn.Linear(config.width, config.width)
        self.kv = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def memory(self, encoded: Tensor, mask: Tensor) -> Memory:
        """Keys and values of ``encoded [B, S, D]`` with ``mask [B, S]``."""
        k, v = self.kv(encoded).unflatten(-1, (2, self.num_heads, -1)).transpose(1, 3).unbind(2)
        return Memory(k, v, mask[:, None, None])

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """``x [B, U, D]`` -> ``([B, U, D], weights [B, H, U, S])``."""
        return self.read(self.scores(x, memory), memory)

    def init_state(self, batch: int, num_symbols: int, like: Tensor) -> Any:
        """State before the first step: content alone has none."""
        return ()

    def step(self, x: Tensor, memory: Memory, state: Any) -> tuple[Tensor, Tensor, Any]:
        """``x [B, D]`` -> ``([B, D], weights [B, H, S], state)``: the parallel form on one step.

        With gradients and nothing in place; a ``state`` of None is that before the first step.
        """
        y, weights = self(x[:, None], memory)
        return y[:, 0], weights[:, :, 0], state

    def segment(
        self, x: Tensor, lengths: Tensor, memory: Memory, enter: Callable[[Any], Any]
    ) -> tuple[Tensor, Tensor, Any]:
        """Parallel form on a part of the sequence, with what :meth:`SelfAttention.segment` takes.

        Returns:
            ``([B, U, D], weights [B, H, U, S], state after the part)``; without a state None, and
            ``enter`` is not called.
        """
        return (*self(x, memory), None)

    def scores(self, x: Tensor, memory: Memory) -> Tensor:
        """How well each step's query fits each symbol's key, ``[B, H, U, S]``."""
        q = self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q = q * q.shape[-1] ** -0.5  # before the product, which in float16 might overflow
        return q @ memory.k.transpose(-1, -2)  # type: ignore[no-any-return]

    def read(self, scores: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` returns, from ``scores [B, H, U, S]``.

        A row with no symbol at all gets uniform weights over padding instead of NaN.
        """
        scores = scores.masked_fill(~memory.mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return self.gather(weights, memory), weights

    def gather(self, weights: Tensor, memory: Memory) -> Tensor:
        """The symbols' values by ``weights [B, H, U, S]``, ``[B, U, D]``."""
        read = weights.to(memory.v.dtype) @ memory.v
        return self.out(read.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class EncoderSelfAttention(nn.Module):
    """Bidirectional softmax attention over symbols."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.by_distance = config.positions == PositionsKind.relative
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, S, D]``, ``mask [B, S]`` -> ``[B, S, D]``."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        away = torch.finfo(q.dtype).min / 2  # with a score it is finite still, in float16 too
        bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, away)[:, None, None]
        if self.by_distance:
            bias = bias + self.distance_bias(q)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def distance_bias(self, q: Tensor) -> Tensor:
        """``[H, S, S]``, what distance takes from the scores of ``q [B, H, S, K]``."""
        place = torch.arange(q.shape[2], device=q.device)
        distance = (place[:, None] - place).abs().to(q.dtype)
        return -distance_slopes(self.num_heads).to(q)[:, None, None] * distance
