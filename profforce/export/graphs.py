"""What is exported: encoder, one decoder step and postnet of a model, as functions of tensors.

The step is that of the mirror, on a copy of the model whose self-attention changes nothing in
place. Positions are counted and the prenet's noise is drawn outside: a graph knows one step.

Shapes: B batch, S symbols, T mel frames, R reduction factor, M mel channels, D width, H heads,
K head width, P prenet layers, W prenet width, G guided heads, t steps done.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from profforce.errors import UserError
from profforce.kernels.state import EPS, LinearState, resolve_feature_map
from profforce.models.mirror import Mirror
from profforce.models.mirror_state import MirrorState
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TTSModel
from profforce.nn.attention import (
    KeyValueCache,
    LinearSelfAttention,
    Memory,
    SoftmaxSelfAttention,
)
from profforce.nn.blocks import DecoderBlock
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.nn.positions import ScaledPositions


class _LinearStep(LinearSelfAttention):
    """Linear attention whose step gives a new state."""

    def step(self, x: Tensor, state: LinearState, t: int | Tensor) -> tuple[Tensor, LinearState]:
        """See :class:`SelfAttention`."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)
        phi = resolve_feature_map(self.feature_map)
        q, k = phi(q), phi(k)
        s, z = state.s + k[..., None] * v[:, :, None], state.z + k
        y = (q[:, :, None] @ s)[:, :, 0] / ((q * z).sum(-1, keepdim=True) + EPS)
        return self.out(y.flatten(1)), LinearState(s, z)


class _SoftmaxStep(SoftmaxSelfAttention):
    """Softmax attention whose cache grows."""

    def init_state(self, batch: int, max_steps: int, like: Tensor) -> KeyValueCache:
        """See :class:`SelfAttention`; without any step."""
        return super().init_state(batch, 0, like)

    def step(
        self, x: Tensor, state: KeyValueCache, t: int | Tensor
    ) -> tuple[Tensor, KeyValueCache]:
        """See :class:`SelfAttention`."""
        return self.traced_step(x, state)


_STEPS: dict[type[nn.Module], type[nn.Module]] = {
    LinearSelfAttention: _LinearStep,
    SoftmaxSelfAttention: _SoftmaxStep,
}


@dataclass(frozen=True)
class StateSpec:
    """One tensor that a step hands on to the next."""

    name: str
    shape: tuple[int | str, ...]
    """``batch``, ``symbols`` and ``steps`` in place of numbers that are not always the same."""
    dtype: str


class _GivenNoise(PrenetNoise):
    """Dropout that was drawn elsewhere: ``kept [B, P, W]`` bool."""

    def __init__(self, kept: Tensor) -> None:
        super().__init__(0, torch.empty(0, dtype=torch.int64))
        object.__setattr__(self, "kept", kept)

    def keep(self, layer: int, steps: Tensor, width: int, p: float) -> Tensor:
        """See :class:`PrenetNoise`."""
        kept: Tensor = self.kept  # type: ignore[attr-defined]
        return kept[:, layer, None]


def exportable(model: TTSModel) -> TransformerTTS:
    """A copy of ``model`` in evaluation mode whose steps can be traced.

    Raises:
        UserError: for another network, and a self-attention or a block that is none of profforce's
            own.
    """
    if not isinstance(model, TransformerTTS):
        raise UserError(
            "this model has no ONNX form",
            where="the model",
            got=f"model.kind={model.config.kind}",
            expected="model.kind=transformer",
        )
    model = copy.deepcopy(model).cpu().float().eval()
    for number, block in enumerate(model.decoder):
        odd: nn.Module = block if type(block) is not DecoderBlock else block.attention
        if type(odd) not in _STEPS:
            raise UserError(
                "this layer has no ONNX form",
                where=f"decoder layer {number + 1}",
                got=type(odd).__name__,
                expected="model.attention=linear or softmax",
            )
        odd.__class__ = _STEPS[type(odd)]
    return model


def _states(state: MirrorState) -> Any:
    """What a step hands on, beside frames."""
    return state.layers, state.recent


def _leaves(value: Any) -> list[Tensor]:
    """The tensors of nested tuples, in order."""
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else [x for part in value for x in _leaves(part)]


def _filled(like: Any, leaves: Iterator[Tensor]) -> Any:
    """Tuples nested as in ``like``, of other tensors."""
    if like is None or isinstance(like, Tensor):
        return None if like is None else next(leaves)
    parts = [_filled(part, leaves) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def state_specs(model: TransformerTTS) -> list[StateSpec]:
    """The states in the order of the step's inputs and outputs; zeros before the first step.

    Raises :class:`UserError` for one that is not.
    """
    starts = [_start(model, batch, symbols) for batch, symbols in ((2, 7), (3, 5))]
    names = {(2, 3): "batch", (7, 5): "symbols", (0, 0): "steps"}
    specs = []
    pairs = zip(*(_leaves(_states(start)) for start in starts), strict=True)
    for number, (one, other) in enumerate(pairs):
        if one.any():
            raise UserError(
                "this model has no ONNX form",
                where="the decoder",
                got="a layer whose state does not begin with zeros",
                remedy="export a model with other attention",
            )
        sizes = zip(one.shape, other.shape, strict=True)
        shape = tuple(names.get(pair, pair[0]) for pair in sizes)
        specs.append(StateSpec(f"state_{number}", shape, str(one.dtype).removeprefix("torch.")))
    return specs


def _start(model: TransformerTTS, batch: int, symbols: int) -> MirrorState:
    text = torch.ones(batch, symbols, dtype=torch.int64)
    return Mirror(model).start(text, torch.full((batch,), symbols), 1)


def memory_names(model: TransformerTTS) -> list[str]:
    """Outputs of the encoder, inputs of each step."""
    return [f"memory_{part}_{n}" for n in range(len(model.decoder)) for part in "kv"]


class EncoderGraph(nn.Module):
    """Text to the memories of cross-attention."""

    def __init__(self, model: TransformerTTS) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, symbols: Tensor, symbol_lengths: Tensor, speakers: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """``[B, S]``, ``[B]``, ``[B]`` int64 -> k and v ``[B, H, S, K]`` a layer, then the mask."""
        memories = self.model.encode(symbols, symbol_lengths, speakers)
        flat = [tensor for memory in memories for tensor in (memory.k, memory.v)]
        return (*flat, memories[0].mask)


class StepGraph(nn.Module):
    """One decoder step."""

    def __init__(self, model: TransformerTTS) -> None:
        super().__init__()
        self.model = model
        self.like = _states(_start(model, 2, 7))
        rates = torch.arange(0, model.config.width, 2, dtype=torch.float64)
        rates = torch.exp(rates * (-math.log(1e4) / model.config.width))  # as in nn.positions
        self.register_buffer("rates", rates, persistent=False)

    def forward(
        self, step: Tensor, frames: Tensor, kept: Tensor, mask: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """One step on the frames of the last.

        Args:
            step: int64 ``[]``, its number.
            frames: ``[B, R * M]``, normalised; zeros before the first.
            kept: ``[B, P, W]`` bool, what the prenet's dropout lets pass.
            mask: ``[B, 1, 1, S]`` of the encoder.
            rest: the memories, two a layer, then the states.

        Returns:
            Frames ``[B, R * M]``, stop probability ``[B, R]``, alignments ``[B, G, S]``, and the
            states after the step.
        """
        count = 2 * len(self.model.decoder)
        pairs = zip(rest[:count:2], rest[1:count:2], strict=True)
        layers, recent = _filled(self.like, iter(rest[count:]))
        state = MirrorState(
            t=0,
            frames=frames,
            layers=layers,
            memories=tuple(Memory(k, v, mask) for k, v in pairs),
            positions=self._positions(step),
            noise=_GivenNoise(kept),
            recent=recent,
        )
        out, after = Mirror(self.model).step(state)
        states = _leaves(_states(after))
        return (after.frames, out.stop_logits.sigmoid(), out.alignments, *states)

    def _positions(self, step: Tensor) -> Tensor | None:
        """``[1, D]``: the row of :meth:`ScaledPositions.table` for this step alone."""
        positions = self.model.decoder_positions
        if not isinstance(positions, ScaledPositions):
            return None
        angles = step.double() * cast(Tensor, self.rates)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten().float()
        return (positions.alpha * waves)[None]


class PostnetGraph(nn.Module):
    """From the decoder's frames to the mel."""

    def __init__(self, model: TransformerTTS) -> None:
        super().__init__()
        self.model = model

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Normalised ``[B, T, M]``, ``[B]`` int64 -> natural-log mel, zero beyond ``lengths``."""
        mask = length_mask(lengths, frames.shape[1])
        return self.model.denormalize(self.model.refine(frames, mask)) * mask[..., None]
