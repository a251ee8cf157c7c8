"""Convolutions over time that take their input bit by bit and give out what is then certain.

However the input is cut, the outputs in a row are those of the whole, zeros beyond both ends
included: each stage keeps the few inputs that later outputs still need. Nothing is computed twice,
and no more is waited for than the filters reach ahead. A stage is the state of one signal.

Shapes: B batch, C channels, N steps that are there, n new ones.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Stage(Protocol):
    """One step of a network that is fed bit by bit."""

    def push(self, x: Tensor, last: bool) -> Tensor:
        """Take ``x [B, C, n]``, n >= 0, and return what can be known now; all that is left if last.

        After the last bit nothing may follow.
        """
        ...


class ConvStage:
    """A convolution that keeps the length: its padding is half of what its kernel spans."""

    def __init__(self, conv: nn.Conv1d) -> None:
        self._conv = conv
        self._reach = conv.dilation[0] * (conv.kernel_size[0] - 1)
        self._kept: Tensor | None = None

    def push(self, x: Tensor, last: bool) -> Tensor:
        """See :class:`Stage`."""
        conv = self._conv
        ahead = self._reach // 2
        before = _silence(x, self._reach - ahead) if self._kept is None else self._kept
        x = torch.cat([before, x, _silence(x, ahead)] if last else [before, x], -1)
        ready = max(x.shape[-1] - self._reach, 0)
        self._kept = x[..., ready:]
        if not ready:
            return x.new_empty(len(x), conv.out_channels, 0)
        return F.conv1d(x, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)


class OverlapAdd:
    """Sums blocks that overlap, ``stride`` samples apart; their ends are cut off."""

    def __init__(self, stride: int, overlap: int, left: int, right: int) -> None:
        """Each block is ``stride + overlap`` long; ``left`` and ``right`` samples are cut off.

        ``right`` is at most ``overlap``.
        """
        self._stride, self._overlap, self._right = stride, overlap, right
        self._left = left
        self._tail: Tensor | None = None

    def push(self, blocks: Tensor, last: bool) -> Tensor:
        """Take the sum of new blocks alone ``[..., n stride + overlap]``; see :class:`Stage`."""
        ready = blocks.shape[-1] - self._overlap
        if self._tail is not None:
            blocks = torch.cat(
                [blocks[..., : self._overlap] + self._tail, blocks[..., self._overlap :]], -1
            )
        self._tail = blocks[..., ready:]
        done = blocks[..., : blocks.shape[-1] - self._right] if last else blocks[..., :ready]
        cut = min(self._left, done.shape[-1])
        self._left -= cut
        return done[..., cut:]


class UpStage:
    """A transposed convolution whose output is ``stride`` times as long as its input."""

    def __init__(self, conv: nn.ConvTranspose1d) -> None:
        self._conv = conv
        self._overlap = conv.kernel_size[0] - conv.stride[0]
        cut = int(conv.padding[0])
        self._sum = OverlapAdd(conv.stride[0], self._overlap, cut, cut)

    def push(self, x: Tensor, last: bool) -> Tensor:
        """See :class:`Stage`."""
        conv = self._conv
        if x.shape[-1]:
            blocks = F.conv_transpose1d(x, conv.weight, None, stride=conv.stride)
        else:
            blocks = x.new_zeros(len(x), conv.out_channels, self._overlap)
        y = self._sum.push(blocks, last)
        return y if conv.bias is None else y + conv.bias[:, None]


class Pointwise:
    """A function of each step alone."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def push(self, x: Tensor, last: bool) -> Tensor:
        """See :class:`Stage`."""
        return self._function(x)


class Chain:
    """Stages one after the other."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    def push(self, x: Tensor, last: bool) -> Tensor:
        """See :class:`Stage`."""
        for stage in self._stages:
            x = stage.push(x, last)
        return x


class Together:
    """The sum of several stages' outputs on one input, each as late as it may be."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._waiting: list[Tensor | None] = [None] * len(stages)

    def push(self, x: Tensor, last: bool) -> Tensor:
        """See :class:`Stage`."""
        made = [
            y if kept is None else torch.cat([kept, y], -1)
            for kept, y in zip(
                self._waiting, (stage.push(x, last) for stage in self._stages), strict=True
            )
        ]
        ready = min(y.shape[-1] for y in made)
        self._waiting = [y[..., ready:] for y in made]
        return torch.stack([y[..., :ready] for y in made]).sum(0)


def residual(stage: Stage) -> Stage:
    """``x + stage(x)``"""
    return Together([Pointwise(lambda x: x), stage])


def _silence(like: Tensor, length: int) -> Tensor:
    return like.new_zeros(*like.shape[:-1], length)
