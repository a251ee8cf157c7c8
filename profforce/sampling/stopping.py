"""Where an utterance ends: by the stop head, at the end of its speech, or at the limit.

Shapes: T mel frames, U decoder steps, S symbols.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from profforce.config import SampleConfig
from profforce.sampling.way import find_way, stretches

MIN_LIMIT_S = 2.0
"""No piece is cut off before this much audio, however short its text."""
LAST_SYMBOLS = 3
"""The text is spoken when attention rests on one of its last symbols, end-of-sentence included;
of a short text on its second half."""
ARRIVED = 0.5
"""Share of a step's attention on them that makes it rest there."""
QUIET_FRAMES = 3
"""Quiet frames in a row that end a sound."""
NEAR_BEST = 0.03
"""A way to the end of the text is taken if it is worse by no more than this than the best one."""


class StoppedBy(StrEnum):
    """What ended an utterance."""

    stop = "stop"
    end_of_speech = "end_of_speech"
    max_frames = "max_frames"


@dataclass(frozen=True)
class Limits:
    """Frames that an utterance may have."""

    min_frames: int
    """The stop head is not heard before."""
    max_frames: int


def limits_of(config: SampleConfig, num_symbols: int, frames_per_s: float) -> Limits:
    """The limits of a text of ``num_symbols``, end-of-sentence included."""
    seconds = max(num_symbols * config.max_seconds_per_symbol, MIN_LIMIT_S)
    most = int(np.ceil(seconds * frames_per_s))
    least = int(np.ceil(num_symbols * config.min_seconds_per_symbol * frames_per_s))
    return Limits(min(max(least, 1), most), most)


def first_of_last(num_symbols: int) -> int:
    """Number of the first of the last symbols of a text of ``num_symbols``."""
    return max(num_symbols - LAST_SYMBOLS, num_symbols // 2)


def stop_frame(probability: Tensor, threshold: float, begin: int) -> int | None:
    """Number of frames up to the first, from the ``begin``-th on, that the stop head ends with.

    Args:
        probability: ``[T]``
        threshold: above which a frame is the last one.
        begin: 1 for the first frame.
    """
    ends = (probability[begin - 1 :] > threshold).nonzero()
    return begin + int(ends[0]) if len(ends) else None


def spoken_step(alignment: Tensor, *, min_step: int, min_on_way: float) -> int | None:
    """The step at which the text is spoken: attention has come to its last symbols, in order.

    Args:
        alignment: ``[U, S]``, mean of the guided heads.
        min_step: not before this step.
        min_on_way: mean share of attention that has to be on the way up to there.

    Returns:
        The first step up to which a way from first to last symbol is about as good as up to any
        other; None if there is none, as where attention never gets so far.
    """
    way = find_way(alignment)
    steps = np.arange(1, len(way.positions) + 1)
    first = first_of_last(way.num_symbols)
    worth = way.reached[:, first:].max(1) / steps
    arrived = np.nan_to_num(alignment[:, first:].sum(1).cpu().numpy()) >= ARRIVED
    worth[(steps <= min_step) | ~arrived] = 0
    best = float(worth.max())
    if best < min_on_way:
        return None
    return int(np.flatnonzero(worth >= best - NEAR_BEST)[0])


def speech_end(
    sounding: NDArray[np.bool_], step: int, *, frames: int, max_tail_frames: int, tail_frames: int
) -> int:
    """Frames up to the end of the sound that is made in ``step``, the one that spoke the text.

    Args:
        sounding: ``[T]``
        step: see :func:`spoken_step`.
        frames: a decoder step.
        max_tail_frames: that the sound may go on for; half as many are kept if it goes on longer.
        tail_frames: kept after it.
    """
    begin = min((step + 1) * frames, len(sounding))
    quiet = stretches(~sounding[begin : begin + max_tail_frames + QUIET_FRAMES])
    for first, last in quiet:
        if last - first >= QUIET_FRAMES:
            return min(begin + first + tail_frames, len(sounding))
    return min(begin + max_tail_frames // 2, len(sounding))
