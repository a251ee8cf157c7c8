"""Free-running with gradients through time: professor forcing as it is usually described.

The model speaks as :meth:`Mirror.free_run` does, but the frames that it feeds back and the state
of its attention keep their gradients, step after step. Activations therefore grow with the number
of steps, each of which is a small pass of its own; the sample pool exists to avoid both. With
``recompute_steps`` only every so many steps are kept, and those between are computed once more in
the backward pass (Chen et al. 2016, arXiv:1604.06174).

Shapes: B batch, S symbols, T mel frames, R reduction factor, U decoder steps, M mel channels,
D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from profforce.config import ModelKind
from profforce.errors import UserError
from profforce.nn.attention import Memory, SelfAttention
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise

if TYPE_CHECKING:
    from profforce.models.transformer import TransformerTTS
    from profforce.models.tts import TTSModel

CHECK_EVERY = 8
"""Steps between looks at whether every utterance has ended, where nothing is computed anew."""


@dataclass(frozen=True)
class ThroughTime:
    """Utterances that the model made from its own outputs, with gradients to every step."""

    hidden: Tensor
    """``[B, U, D]``, zero beyond the lengths."""
    mel_before: Tensor
    """``[B, T, M]`` natural-log amplitude before the postnet, zero beyond the lengths."""
    lengths: Tensor
    """``[B]`` int64, frames."""
    stopped: Tensor
    """``[B]`` bool: the stop head ended the utterance, not ``max_frames``."""


class _Carried(NamedTuple):
    """What one step hands to the next."""

    frames: Tensor
    """``[B, R * M]``, normalised."""
    layers: tuple[Any, ...]
    """State of each layer; None before the first step."""
    recent: Tensor | None
    """State of :class:`RecentSteps`, where the model has them."""


class _Rows(NamedTuple):
    """What some steps in a row give."""

    hidden: Tensor
    """``[B, U', D]``"""
    frames: Tensor
    """``[B, U' * R, M]``, normalised."""
    stop: Tensor
    """``[B, U' * R]``, logits."""


def check_through_time(model: "TTSModel") -> None:
    """Refuse a model whose steps have no gradients.

    Raises:
        UserError: if it has no self-attention, or that has no traced step.
    """
    if model.config.kind != ModelKind.transformer:
        raise UserError(
            "only the Transformer can be trained through time",
            where="method=through_time",
            got=f"model.kind={model.config.kind}",
            expected="model.kind=transformer",
            remedy="use method=professor_forcing",
        )
    for block in cast("TransformerTTS", model).decoder:
        attention = block.attention
        assert isinstance(attention, SelfAttention)
        if type(attention).traced_step is SelfAttention.traced_step:
            raise UserError(
                "this self-attention cannot be trained through time",
                where="method=through_time",
                got=f"model.attention={model.config.attention}, which has no traced_step",
                expected="model.attention=linear or softmax, or a layer with that method",
                remedy="use method=professor_forcing",
            )


def run_through_time(
    model: "TTSModel",
    symbols: Tensor,
    symbol_lengths: Tensor,
    max_frames: Tensor,
    *,
    noise: PrenetNoise | None = None,
    speakers: Tensor | None = None,
    stop_threshold: float = 0.5,
    recompute_steps: int | None = None,
) -> ThroughTime:
    """Generate utterances until each stops or reaches its ``max_frames``, keeping gradients.

    In evaluation mode the frames are those of :meth:`Mirror.free_run`. In training mode the blocks'
    dropout is on, as in a teacher-forced pass, so that its noise does not tell the two apart.
    Utterances that have ended run along until the last one has.

    Args:
        model: that passes :func:`check_through_time`, in either mode; without ``torch.no_grad``
            everything is differentiable.
        symbols: ``[B, S]`` int64.
        symbol_lengths: ``[B]`` int64.
        max_frames: ``[B]`` int64, at least 1 each.
        noise: key of the prenet's dropout; None switches it off.
        speakers: ``[B]`` int64.
        stop_threshold: probability above which a frame is the last one.
        recompute_steps: decoder steps of which only the first one's inputs are kept.
    """
    model = cast("TransformerTTS", model)
    size = model.config.reduction_factor
    max_steps = -(-int(max_frames.max()) // size)
    positions = model.decoder_positions.table(max_steps, model.config.width)
    memories = [  # contiguous once, or every step would copy them and autograd keep each copy
        Memory(memory.k.contiguous(), memory.v.contiguous(), memory.mask)
        for memory in model.encode(symbols, symbol_lengths, speakers)
    ]
    carried = _before_the_first(model, memories, len(symbols))
    rows: list[_Rows] = []
    ended = torch.zeros_like(max_frames, dtype=torch.bool)
    every = recompute_steps or CHECK_EVERY
    for start in range(0, max_steps, every):
        numbers = torch.arange(start, min(start + every, max_steps), device=symbols.device)
        given = (model, carried, memories, positions, numbers, noise)
        if recompute_steps is not None and torch.is_grad_enabled():
            row, carried = checkpoint(_steps, *given, use_reentrant=False)
        else:
            row, carried = _steps(*given)
        rows.append(row)
        ended |= _ends(row.stop, start * size, max_frames, stop_threshold)[0].any(1)
        if bool(ended.all()):
            break
    return _finish(model, rows, max_frames, stop_threshold)


def _before_the_first(model: "TransformerTTS", memories: Sequence[Memory], batch: int) -> _Carried:
    """What the first step finds: no frames, no states."""
    size = model.config.reduction_factor * model.num_mels
    frames = memories[0].k.new_zeros(batch, size)
    recent = model.recent_steps
    past = None if recent is None else recent.init_state(batch, frames)
    return _Carried(frames, (None,) * len(memories), past)


def _steps(
    model: "TransformerTTS",
    carried: _Carried,
    memories: Sequence[Memory],
    positions: Tensor | None,
    numbers: Tensor,
    noise: PrenetNoise | None,
) -> tuple[_Rows, _Carried]:
    """The decoder steps ``numbers [U']``, one after the other; ``positions [U, D]`` of all."""
    frames, layers, recent = carried
    states: list[Any] = list(layers)
    hidden, mels, stops = [], [], []
    for number in numbers.split(1):
        x = model.decoder_in(model.prenet(frames[:, None], noise, number)[:, 0])
        if positions is not None:
            x = x + positions[number]
        if model.recent_steps is not None and recent is not None:
            x, recent = model.recent_steps.step(x, recent)
        for layer, (block, memory) in enumerate(zip(model.decoder, memories, strict=True)):
            x, states[layer] = block.traced_step(x, states[layer], memory)  # type: ignore[operator]
        hidden.append(model.decoder_norm(x)[:, None])
        mel, stop = model.frames(hidden[-1])
        mels.append(mel)
        stops.append(stop)
        frames = mel.flatten(1)
    rows = _Rows(*(torch.cat(parts, 1) for parts in (hidden, mels, stops)))
    return rows, _Carried(frames, tuple(states), recent)


def _ends(
    stop_logits: Tensor, before: int, max_frames: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """Frames that may be the last, and those of them that the stop head chose: bool ``[B, T']``.

    ``before`` frames precede those of ``stop_logits [B, T']``.
    """
    number = torch.arange(1, stop_logits.shape[1] + 1, device=stop_logits.device) + before
    limit = max_frames[:, None]
    chosen = (stop_logits.detach().sigmoid() > threshold) & (number <= limit)
    return chosen | (number == limit), chosen


def _finish(
    model: "TransformerTTS", rows: Sequence[_Rows], max_frames: Tensor, threshold: float
) -> ThroughTime:
    hidden, frames, stop = (torch.cat(parts, 1) for parts in zip(*rows, strict=True))
    ends, chosen = _ends(stop, 0, max_frames, threshold)
    first = ends.to(torch.int64).argmax(1)
    lengths = first + 1
    num_frames = int(lengths.max())
    steps = -(-lengths // model.config.reduction_factor)
    num_steps = -(-num_frames // model.config.reduction_factor)
    mel = model.denormalize(frames[:, :num_frames])
    return ThroughTime(
        hidden=hidden[:, :num_steps] * length_mask(steps, num_steps)[..., None],
        mel_before=mel * length_mask(lengths, num_frames)[..., None],
        lengths=lengths,
        stopped=chosen.gather(1, first[:, None])[:, 0],
    )
