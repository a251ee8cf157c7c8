"""The postnet in segments, whose activations do not grow with the length.

Shapes: B batch, T mel frames, M mel channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from profforce.models.replay import added, autocast_of, draw_seed, gradients, replayed

if TYPE_CHECKING:
    from profforce.models.tts import TTSModel


def refine_in_segments(
    model: "TTSModel", before: Tensor, mask: Tensor, segment_steps: int
) -> Tensor:
    """Add the postnet's residual to normalised frames ``[B, T, M]``, some at a time.

    Each part sees as many frames around it as the convolutions reach, and draws a dropout of its
    own for them.
    """
    if not model.postnet.convs:
        return before
    plan = _RefinePlan(model, mask, segment_steps * model.config.reduction_factor, draw_seed())
    after: Tensor = _Refine.apply(plan, before, *model.postnet.parameters())
    return after


@dataclass(frozen=True)
class _RefinePlan:
    """Parts of ``segment_frames`` frames, and what the postnet sees around each."""

    model: "TTSModel"
    mask: Tensor
    segment_frames: int
    seed: int

    @property
    def halo(self) -> int:
        """Frames that the convolutions reach to each side."""
        return sum(conv.padding[0] for conv in self.model.postnet.convs)  # type: ignore[index, misc]

    def windows(self) -> Iterator[tuple[int, slice, slice]]:
        """(number, frames of the part, frames seen)."""
        total = self.mask.shape[1]
        for number, start in enumerate(range(0, total, self.segment_frames)):
            stop = min(start + self.segment_frames, total)
            seen = slice(max(start - self.halo, 0), min(stop + self.halo, total))
            yield number, slice(start, stop), seen

    def run(self, number: int, part: slice, seen: slice, window: Tensor) -> Tensor:
        """The residual of a part, from the ``window`` of frames seen."""
        with replayed(self.seed + number, window.device):
            residual: Tensor = self.model.postnet(window, self.mask[:, seen])
        return residual[:, part.start - seen.start : part.stop - seen.start]


class _Refine(torch.autograd.Function):
    """``(plan, before [B, T, M], weights) -> after [B, T, M]``."""

    @staticmethod
    def forward(ctx: Any, plan: _RefinePlan, before: Tensor, *weights: Tensor) -> Tensor:
        after = before.clone(memory_format=torch.contiguous_format)
        for number, part, seen in plan.windows():
            after[:, part] += plan.run(number, part, seen, before[:, seen])
        ctx.plan = plan
        ctx.autocast = autocast_of(before.device)
        ctx.save_for_backward(before, *weights)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        before, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        wanted = [x for x, flag in zip(weights, needed, strict=True) if flag]
        sums: list[Tensor | None] = [None] * len(wanted)
        grad_before = grad.clone()
        with ctx.autocast():
            for number, part, seen in ctx.plan.windows():
                window = before[:, seen].detach().requires_grad_()
                with torch.enable_grad():
                    residual = ctx.plan.run(number, part, seen, window)
                found = gradients([(residual, grad[:, part])], [window, *wanted])
                reached = next(found)
                assert reached is not None
                grad_before[:, seen] += reached
                sums = [added(total, next(found)) for total in sums]
        left = iter(sums)
        return None, grad_before, *(next(left) if flag else None for flag in needed)
