"""What is exported: encoder, one decoder step and postnet of a model, as functions of tensors.

The step is that of the mirror, on a copy of the model whose self-attention changes nothing in
place. Positions are counted and the prenet's noise is drawn outside: a graph knows one step.

Shapes: B batch, S symbols, T mel frames, R reduction factor, M mel channels, D width, H heads,
K head width, P prenet layers, W prenet width, G guided heads, t steps done.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from profforce.errors import UserError
from profforce.kernels.state import EPS, LinearState, resolve_feature_map
from profforce.models.mirror import Mirror, MirrorState
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TTSModel
from profforce.nn.attention import (
    CrossAttention,
    KeyValueCache,
    LinearSelfAttention,
    Memory,
    SelfAttention,
    SoftmaxSelfAttention,
)
from profforce.nn.blocks import BlockState, DecoderBlock
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
    """``batch`` and ``steps`` in place of numbers that are not the same in every step."""


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
        UserError: for another network, a self-attention or a block that is none of profforce's own,
            and for what counts its own place.
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
    _refuse_places(model)
    return model


def _refuse_places(model: TransformerTTS) -> None:
    odd = [type(block.cross) for block in model.decoder if type(block.cross) is not CrossAttention]
    if odd or model.recent_steps is not None:
        raise UserError(
            "this model has no ONNX form",
            where="the decoder",
            got=odd[0].__name__ if odd else "RecentSteps",
            expected="model.cross_attention=content and model.positions=absolute",
        )


def state_specs(model: TransformerTTS) -> list[StateSpec]:
    """The states of all layers in the order of the step's inputs and outputs; zero at first."""
    config = model.config
    heads, width = config.num_heads, config.width // config.num_heads
    specs = []
    for number, block in enumerate(model.decoder):
        if isinstance(block.attention, LinearSelfAttention):
            specs.append(StateSpec(f"state_s_{number}", ("batch", heads, width, width)))
            specs.append(StateSpec(f"state_z_{number}", ("batch", heads, width)))
        else:
            for part in "kv":
                shape = ("batch", heads, "steps", width)
                specs.append(StateSpec(f"state_{part}_{number}", shape))
    return specs


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
            rest: the memories, then the states, two a layer each.

        Returns:
            Frames ``[B, R * M]``, stop probability ``[B, R]``, alignments ``[B, G, S]``, and the
            states after the step.
        """
        layers, decoder = len(self.model.decoder), self.model.decoder_positions
        assert isinstance(decoder, ScaledPositions)
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        memories = tuple(Memory(k, v, mask) for k, v in pairs[:layers])
        angles = step.double() * self.rates  # type: ignore[operator]
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten().float()
        state = MirrorState(
            t=0,
            frames=frames,
            layers=tuple(
                _state(*each) for each in zip(self.model.decoder, pairs[layers:], strict=True)
            ),
            memories=memories,
            positions=(decoder.alpha * waves)[None],
            noise=_GivenNoise(kept),
        )
        out, after = Mirror(self.model).step(state)
        states = [tensor for layer in after.layers for tensor in layer.attention]
        return (after.frames, out.stop_logits.sigmoid(), out.alignments, *states)


def _state(block: Any, pair: tuple[Tensor, Tensor]) -> BlockState:
    attention: SelfAttention = block.attention
    kind = LinearState if isinstance(attention, LinearSelfAttention) else KeyValueCache
    return BlockState(kind(*pair), ())


class PostnetGraph(nn.Module):
    """From the decoder's frames to the mel."""

    def __init__(self, model: TransformerTTS) -> None:
        super().__init__()
        self.model = model

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Normalised ``[B, T, M]``, ``[B]`` int64 -> natural-log mel, zero beyond ``lengths``."""
        mask = length_mask(lengths, frames.shape[1])
        return self.model.denormalize(self.model.refine(frames, mask)) * mask[..., None]
