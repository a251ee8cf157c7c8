"""The decoder step on tensors that stay where they are, as a CUDA graph wants it.

A graph repeats kernels with the addresses and shapes they were captured with. So everything that a
step reads or writes lies in a :class:`Room` of a fixed size, the number of the step included; what
changes from run to run is copied into it. No step looks at a value or makes a tensor on the host.

Shapes: B rows of the room, S symbols, N steps of a replay, R reduction factor, M mel channels,
D width, G guided heads, P places of a cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import Memory
from profforce.nn.noise import PrenetNoise


class Decoder(nn.Module):
    """The model's own modules that a step calls, without a reference to the model itself.

    What is kept for a model as long as it lives must not keep it alive.
    """

    def __init__(self, model: TransformerTTS) -> None:
        super().__init__()
        self.prenet, self.decoder_in = model.prenet, model.decoder_in
        self.decoder, self.decoder_norm = model.decoder, model.decoder_norm
        self.mel_out, self.stop_out = model.mel_out, model.stop_out
        self.recent_steps = model.recent_steps
        self.config, self.num_mels = model.config, model.num_mels

    @property
    def num_heads_shown(self) -> int:
        """G."""
        layers = min(self.config.guided_layers, len(self.decoder))
        return layers * self.config.guided_heads


@dataclass(frozen=True)
class Size:
    """How much a room holds."""

    rows: int
    symbols: int
    places: int
    """Decoder steps of a run; 0 where no layer's state grows with them."""
    steps: int
    """N."""


@dataclass(frozen=True)
class DrawnNoise(PrenetNoise):
    """Noise of a replay, drawn before it: a hash of many kernels, once instead of N times."""

    drawn: tuple[Tensor, ...]
    """``[B, N, width]`` bool of each layer of the prenet."""
    place: int = 0
    """Number of the step within the replay."""

    def keep(self, layer: int, steps: Tensor, width: int, p: float) -> Tensor:
        """See :class:`PrenetNoise`; ``steps`` were settled when it was drawn."""
        return self.drawn[layer][:, self.place : self.place + 1]


@dataclass(frozen=True)
class Room:
    """All tensors of N steps."""

    t: Tensor
    """``[]`` int64, number of the next step."""
    mel: Tensor
    """``[B, N, R * M]``, frames of this replay; a step reads those of the step before."""
    stop_logits: Tensor
    """``[B, N, R]``"""
    alignments: Tensor
    """``[B, G, N, S]``"""
    positions: Tensor
    """``[N, D]``"""
    noise: DrawnNoise | None
    memories: tuple[Memory, ...]
    layers: tuple[Any, ...]
    """State of each layer, and behind them that of :class:`RecentSteps`, where the model has it."""
    first: tuple[Any, ...]
    """The same of one row before its first step."""

    @classmethod
    def allocate(cls, decoder: Decoder, size: Size, dtype: torch.dtype, *, noisy: bool) -> "Room":
        """A room for ``decoder``; keys and values are held in ``dtype``."""
        config, rows, steps = decoder.config, size.rows, size.steps
        like = decoder.mel_out.weight.detach()
        small = like.new_zeros(0, dtype=dtype)
        head_width = config.width // config.num_heads

        def memory() -> Memory:
            k, v = (small.new_zeros(rows, config.num_heads, size.symbols, head_width) for _ in "kv")
            return Memory(k, v, like.new_zeros(rows, 1, 1, size.symbols, dtype=torch.bool))

        def states(count: int) -> tuple[Any, ...]:
            layers = [
                block.init_state(count, size.places, size.symbols, small)  # type: ignore[operator]
                for block in decoder.decoder
            ]
            if decoder.recent_steps is not None:
                layers.append(decoder.recent_steps.init_state(count, like))
            return tuple(layers)

        return cls(
            t=like.new_zeros((), dtype=torch.int64),
            mel=like.new_zeros(rows, steps, config.reduction_factor * decoder.num_mels),
            stop_logits=like.new_zeros(rows, steps, config.reduction_factor),
            alignments=like.new_zeros(rows, decoder.num_heads_shown, steps, size.symbols),
            positions=like.new_zeros(steps, config.width),
            noise=_room_for_noise(decoder, size) if noisy else None,
            memories=tuple(memory() for _ in decoder.decoder),
            layers=states(rows),
            first=states(1),
        )

    @property
    def num_steps(self) -> int:
        """N."""
        return self.mel.shape[1]

    def part(self, rows: int) -> "Room":
        """The first rows, on the same storage."""
        return self._mapped(lambda x: x[:rows])

    def clone(self) -> "Room":
        """A room of its own with the same content."""
        own = self._mapped(Tensor.clone)
        return replace(own, t=self.t.clone(), positions=self.positions.clone())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Room":
        """With every tensor changed that has the batch first."""
        noise = self.noise
        if noise is not None:
            noise = replace(noise, drawn=tuple(map(change, noise.drawn)))
        return replace(
            self,
            mel=change(self.mel),
            stop_logits=change(self.stop_logits),
            alignments=change(self.alignments),
            noise=noise,
            memories=_map(change, self.memories),
            layers=_map(change, self.layers),
        )

    def enter(self, memories: Sequence[Memory], rows: Tensor) -> None:
        """Begin anew with utterances ``rows [n]`` of ``memories``, in the first n rows."""
        count = len(rows)
        self.t.zero_()
        self.mel.zero_()
        for held, first in zip(_tensors(self.layers), _tensors(self.first), strict=True):
            held.copy_(first.expand_as(held))
        for memory, whole in zip(self.memories, memories, strict=True):
            for held in memory:
                held.zero_()  # what was there may not be a number, and zero times that is none
            symbols = whole.k.shape[2]
            memory.k[:count, :, :symbols] = whole.k[rows]
            memory.v[:count, :, :symbols] = whole.v[rows]
            memory.mask[:count, ..., :symbols] = whole.mask[rows]

    def keep(self, rows: Tensor) -> None:
        """Move rows ``[n]`` of the room to its front; the others are lost."""
        count = len(rows)
        for held in (self.mel, *_tensors(self.layers), *_tensors(self.memories)):
            held[:count] = held[rows]

    def prepare(self, positions: Tensor, noise: PrenetNoise | None, p: float, begin: int) -> None:
        """Copy in what the next N steps add.

        Args:
            positions: ``[N, D]``.
            noise: key of the utterances in the first rows.
            p: probability of dropout.
            begin: number of the first step.
        """
        self.positions.copy_(positions)
        if noise is None or self.noise is None:
            return
        count = len(noise.utterances)
        steps = torch.arange(begin, begin + self.num_steps, device=positions.device)
        for layer, drawn in enumerate(self.noise.drawn):
            drawn[:count] = noise.keep(layer, steps, drawn.shape[-1], p)

    def step(self, decoder: Decoder, place: int) -> None:
        """Step number ``t``, which is step ``place`` of the replay: ``Mirror.step`` in place."""
        noise = None if self.noise is None else replace(self.noise, place=place)
        before = self.mel[:, place - 1 : place or None]
        x = decoder.decoder_in(decoder.prenet(before, noise, self.t[None])[:, 0])
        x = x + self.positions[place]
        if decoder.recent_steps is not None:
            x, recent = decoder.recent_steps.step(x, self.layers[-1])
            self.layers[-1].copy_(recent)
        guided = []
        layers = self.layers[: len(decoder.decoder)]
        for block, layer, memory in zip(decoder.decoder, layers, self.memories, strict=True):
            x, after, weights = block.step(x, layer, memory, self.t)  # type: ignore[operator]
            for held, new in zip(_tensors(layer), _tensors(after), strict=True):
                if held is not new:
                    held.copy_(new)
            guided.append(weights[:, : decoder.config.guided_heads])
        hidden = decoder.decoder_norm(x)
        self.mel[:, place] = decoder.mel_out(hidden)
        self.stop_logits[:, place] = decoder.stop_out(hidden)
        if self.alignments.shape[1]:
            self.alignments[:, :, place] = torch.cat(guided[-decoder.config.guided_layers :], 1)
        self.t.add_(1)


def _room_for_noise(decoder: Decoder, size: Size) -> DrawnNoise:
    like = decoder.mel_out.weight
    widths = [layer.out_features for layer in decoder.prenet.layers if isinstance(layer, nn.Linear)]
    drawn = (like.new_zeros(size.rows, size.steps, width, dtype=torch.bool) for width in widths)
    return DrawnNoise(0, like.new_zeros(0, dtype=torch.int64), tuple(drawn))


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of a (possibly nested) tuple, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [x for part in value for x in _tensors(part)]


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A (possibly nested) tuple with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    parts = [_map(change, part) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
