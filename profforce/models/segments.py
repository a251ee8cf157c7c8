"""Teacher-forced passes whose activation memory does not depend on the length.

The decoder runs in segments of a few steps and keeps only their outputs and each layer's state
after the last one. The backward pass walks the segments from the last to the first: it takes a
segment's own keys out of the state, which gives the state before it, computes the segment anew
with gradients, and hands the state's gradient on to the segment before (Likhosherstov et al. 2021,
"Sub-Linear Memory: How to Make Performers SLiM", arXiv:2012.11346, section 3). The sums are kept in
float64 with what rounding took from them, so that taking out what was put in leaves nothing behind:
where keys are zero, the normaliser would turn a trace into a value.

Dropout is drawn anew for each segment from one seed for the pass, so that it is replayed without
being kept.

Shapes: B batch, U decoder steps, S symbols, R reduction factor, M mel channels, D width, G guided
heads, L decoder layers; A frames of decoder input, R * M. A layer has a state or two, each a tuple
of sums: of its keys, and of what moves its place in the text.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from profforce.config import ModelKind
from profforce.errors import UserError
from profforce.models.replay import added, autocast_of, draw_seed, gradients, replayed
from profforce.nn.attention import Memory, SelfAttention
from profforce.nn.noise import PrenetNoise
from profforce.nn.positions import ScaledPositions, sinusoid

if TYPE_CHECKING:
    from profforce.models.transformer import TransformerTTS
    from profforce.models.tts import TTSModel


class Decoded(NamedTuple):
    """The decoder's outputs; of the first two, frames beyond the lengths are arbitrary."""

    before: Tensor
    """``[B, U * R, M]``, normalised, before the postnet."""
    stop: Tensor
    """``[B, U * R]``, stop logits."""
    hidden: Tensor
    """``[B, U, D]``, zero beyond the lengths."""
    alignments: Tensor
    """``[B, G, U, S]``, zero beyond the lengths."""


TIME_AXIS = (1, 1, 1, 2)
"""Where each output of :class:`Decoded` counts steps or frames."""


def check_segments(model: "TTSModel", device: torch.device) -> None:
    """Refuse a model that cannot run in segments.

    Raises:
        UserError: if it has no self-attention, an attention has no segment form, or the device no
            float64.
    """
    if model.config.kind != ModelKind.transformer:
        raise UserError(
            "only the Transformer can be trained in segments",
            where="trainer.segment_steps",
            got=f"model.kind={model.config.kind}",
            expected="model.kind=transformer",
            remedy="leave it unset; trainer.recompute_activations=true saves memory too",
        )
    for block in cast("TransformerTTS", model).decoder:
        attention = block.attention
        assert isinstance(attention, SelfAttention)
        if type(attention).segment is SelfAttention.segment:
            raise UserError(
                "this self-attention cannot be trained in segments",
                where="trainer.segment_steps",
                got=f"model.attention={model.config.attention}, whose state is no sum over keys",
                expected="model.attention=linear, or a layer with a segment form",
                remedy="leave it unset; trainer.recompute_activations=true saves memory too",
            )
        if not block.cross.in_segments:  # type: ignore[union-attr]
            raise UserError(
                "this cross-attention cannot be trained in segments",
                where="trainer.segment_steps",
                got=f"model.cross_attention={model.config.cross_attention}, whose state is no sum",
                expected="model.cross_attention=content or monotonic",
                remedy="leave it unset; trainer.recompute_activations=true saves memory too",
            )
    if device.type == "mps":
        raise UserError(
            "training in segments needs float64",
            where="trainer.segment_steps",
            got="device=mps, which has none",
            remedy="leave it unset; trainer.recompute_activations=true saves memory too",
        )


def decode_in_segments(
    model: "TransformerTTS",
    inputs: Tensor,
    lengths: Tensor,
    memories: Sequence[Memory],
    noise: PrenetNoise | None,
    segment_steps: int,
) -> Decoded:
    """The decoder over ``inputs [B, U, A]``, ``segment_steps`` at a time.

    Args:
        model: every layer with a segment form.
        inputs: normalised frames, shifted.
        lengths: ``[B]``, decoder steps.
        memories: one a layer; gradients reach their keys and values.
        noise: the prenet's.
        segment_steps: memory grows with it, and it need not divide U.
    """
    masks = tuple(memory.mask for memory in memories)
    parts = (model.prenet, model.decoder_in, model.decoder_positions, model.recent_steps)
    heads = (model.decoder, model.decoder_norm, model.mel_out, model.stop_out)
    weights = [p for part in (*parts, *heads) if part is not None for p in part.parameters()]
    keys = [x for memory in memories for x in (memory.k, memory.v)]
    plan = _Plan(model, lengths, masks, noise, segment_steps, draw_seed())
    return Decoded(*_Decode.apply(plan, inputs, *keys, *weights))


class _Sum(NamedTuple):
    """A sum in float64 and its rounding errors (Knuth's two-sum): subtracting undoes adding."""

    high: Tensor
    low: Tensor

    @classmethod
    def zero(cls, like: Tensor) -> "_Sum":
        """Nothing yet, in the shape of ``like``."""
        zero = torch.zeros_like(like, dtype=torch.float64)
        return cls(zero, zero)

    @property
    def value(self) -> Tensor:
        """The sum, rounded once."""
        return self.high + self.low

    def plus(self, x: Tensor) -> "_Sum":
        """With ``x`` added; what is lost in the sum is kept beside it."""
        high = self.high + x
        added = high - self.high
        return _Sum(high, self.low + ((self.high - (high - added)) + (x - added)))


@dataclass(frozen=True)
class _Plan:
    """What a pass depends on and has no gradient."""

    model: "TransformerTTS"
    lengths: Tensor
    masks: tuple[Tensor, ...]
    noise: PrenetNoise | None
    segment_steps: int
    seed: int

    def run(
        self,
        number: int,
        inputs: Tensor,
        keys: Sequence[Tensor],
        enter: Callable[[int, Any], Any],
    ) -> tuple[Decoded, list[Any]]:
        """Segment ``number`` over its ``inputs [B, U', A]``: outputs, states after it.

        The first :meth:`overlap` inputs are of steps before it. ``enter`` is called with the number
        of a state and its own sum, for each in order.
        """
        model, start = self.model, number * self.segment_steps
        calls, before = itertools.count(), self.overlap(number)
        steps = torch.arange(start - before, start - before + inputs.shape[1])
        size = inputs.shape[1] - before
        lengths = (self.lengths - start).clamp(0, size)
        guided, states = [], []
        with replayed(self.seed + number, inputs.device):
            x = model.decoder_in(model.prenet(inputs, self.noise, steps.to(inputs.device)))
            x = x.to(inputs.dtype)  # if autocast
            if isinstance(model.decoder_positions, ScaledPositions):
                x = x + model.decoder_positions.alpha * _positions(start - before, x)
            if model.recent_steps is not None:
                x = model.recent_steps(x)  # zeros only where nothing was
            x = x[:, before:]
            memories = map(Memory, keys[::2], keys[1::2], self.masks)
            for block, memory in zip(model.decoder, memories, strict=True):
                x, weights, after = block.segment(  # type: ignore[operator]
                    x, lengths, memory, lambda own: enter(next(calls), own)
                )
                guided.append(weights[:, : model.config.guided_heads])
                states += after
            return model.heads(x, guided, lengths), states

    def overlap(self, number: int) -> int:
        """How many steps before segment ``number`` its first outputs see."""
        if self.model.recent_steps is None:
            return 0
        return min(self.model.config.recent_steps - 1, number * self.segment_steps)

    def inputs_of(self, inputs: Tensor, number: int) -> Tensor:
        """The view of what segment ``number`` sees of ``inputs [B, U, A]``."""
        start, total = number * self.segment_steps, inputs.shape[1]
        return inputs[:, start - self.overlap(number) : min(start + self.segment_steps, total)]

    def split(self, tensor: Tensor, total: int, number: int, axis: int = 1) -> Tensor:
        """The view of segment ``number`` in a tensor of ``total`` steps, or R frames for each."""
        each = tensor.shape[axis] // total
        start = number * self.segment_steps
        size = min(self.segment_steps, total - start)
        return tensor.narrow(axis, start * each, size * each)

    def room(self, first: Tensor, total: int, axis: int) -> Tensor:
        """Memory for an output of ``total`` steps, of which ``first`` is segment 0."""
        shape = list(first.shape)
        shape[axis] = shape[axis] // min(self.segment_steps, total) * total
        return first.new_empty(shape)


class _Decode(torch.autograd.Function):
    """``(plan, inputs, k and v of each memory, weights) -> Decoded``."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, inputs: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        total, keys = inputs.shape[1], tensors[: 2 * len(plan.masks)]
        sums: dict[int, list[_Sum]] = {}

        def enter(place: int, own: Any) -> Any:
            before = sums.get(place) or [_Sum.zero(x) for x in own]
            sums[place] = [total.plus(x) for total, x in zip(before, own, strict=True)]
            return type(own)(*(total.value for total in before))

        out: list[Tensor] = []
        for number in range(-(-total // plan.segment_steps)):
            parts, _ = plan.run(number, plan.inputs_of(inputs, number), keys, enter)
            out = out or [
                plan.room(x, total, axis) for x, axis in zip(parts, TIME_AXIS, strict=True)
            ]
            for whole, part, axis in zip(out, parts, TIME_AXIS, strict=True):
                plan.split(whole, total, number, axis).copy_(part)
        ctx.plan, ctx.num_tensors = plan, len(tensors)
        ctx.autocast = autocast_of(inputs.device)
        ctx.sizes = [len(sums[place]) for place in range(len(sums))]
        states = (x for place in range(len(sums)) for total in sums[place] for x in total)
        ctx.save_for_backward(inputs, *tensors, *states)
        ctx.set_materialize_grads(False)
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, *saved = ctx.saved_tensors
        tensors, states = saved[: ctx.num_tensors], saved[ctx.num_tensors :]
        walk = _Backward(ctx.plan, inputs, tensors, states, ctx.sizes, ctx.needs_input_grad)
        with ctx.autocast():
            for number in reversed(range(-(-inputs.shape[1] // ctx.plan.segment_steps))):
                walk.segment(number, grads)
        return None, walk.grad_inputs, *walk.gradients


class _Backward:
    """The walk from the last segment to the first: states and gradients so far."""

    def __init__(
        self,
        plan: _Plan,
        inputs: Tensor,
        tensors: Sequence[Tensor],
        states: Sequence[Tensor],
        sizes: Sequence[int],
        needed: Sequence[bool],
    ) -> None:
        self.plan, self.inputs = plan, inputs
        totals = [_Sum(*pair) for pair in zip(states[::2], states[1::2], strict=True)]
        rest = iter(totals)
        self.sums = [list(itertools.islice(rest, size)) for size in sizes]
        self.grad_states: list[Tensor | None] = [None] * len(totals)
        self.grad_inputs = torch.zeros_like(inputs) if needed[1] else None
        self.num_keys = 2 * len(plan.masks)
        keys = [x.detach().requires_grad_() for x in tensors[: self.num_keys]]
        self.leaves = [*keys, *tensors[self.num_keys :]]
        self.needed = needed[2:]
        self.gradients: list[Tensor | None] = [None] * len(self.leaves)

    def segment(self, number: int, grads: Sequence[Tensor | None]) -> None:
        """Compute segment ``number`` anew and take in its gradients."""
        plan, total = self.plan, self.inputs.shape[1]
        entered: list[Tensor] = []

        def enter(place: int, own: Any) -> Any:
            with torch.no_grad():
                pairs = zip(self.sums[place], own, strict=True)
                self.sums[place] = [total.plus(-x) for total, x in pairs]
                leaves = type(own)(*(total.value for total in self.sums[place]))
            entered.extend(x.requires_grad_() for x in leaves)
            return leaves

        part = plan.inputs_of(self.inputs, number).detach()
        part.requires_grad_(self.grad_inputs is not None)
        with torch.enable_grad():
            parts, after = plan.run(number, part, self.leaves[: self.num_keys], enter)
        roots: list[tuple[Tensor, Tensor]] = [
            (y, plan.split(grad, total, number, axis))
            for y, grad, axis in zip(parts, grads, TIME_AXIS, strict=True)
            if grad is not None
        ]
        flat = [x for state in after for x in state]
        roots += [
            (y, grad.to(y.dtype))
            for y, grad in zip(flat, self.grad_states, strict=True)
            if grad is not None
        ]
        wanted = [x for x, flag in zip(self.leaves, self.needed, strict=True) if flag]
        wanted = [*entered, *wanted, *([part] if part.requires_grad else [])]
        self._take(number, entered, gradients(roots, wanted))

    def _take(self, number: int, entered: Sequence[Tensor], found: Iterator[Tensor | None]) -> None:
        self.grad_states = [next(found) for _ in entered]
        for place, flag in enumerate(self.needed):
            if flag:
                self.gradients[place] = added(self.gradients[place], next(found))
        if self.grad_inputs is not None:
            grad = next(found)
            assert grad is not None
            self.plan.inputs_of(self.grad_inputs, number).add_(grad)


def _positions(start: int, like: Tensor) -> Tensor:
    """Rows ``start`` and on of the sinusoids, ``[U', D]``, without those before.

    A step turns each pair (sine, cosine) by an angle that row 1 tells.
    """
    steps, width = like.shape[1:]
    sine, cosine = sinusoid(2, width, like=like.new_empty((), dtype=torch.float64))[1].view(-1, 2).T
    angles = torch.arange(start, start + steps, device=like.device)[:, None] * sine.atan2(cosine)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)
