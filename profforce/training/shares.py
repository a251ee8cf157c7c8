"""What part of an optimizer step each of its batches is, so that their gradients add up.

A step's loss is a mean over everything in it: over all frames, all decoder steps times symbols, all
pairs of behaviours. A batch knows its own means only. Weighed by its share of what the step counts,
the means of batches add up to the mean over all: a step is then the same whether its batches come
one after the other, in several processes, or as one, and however unlike their lengths are.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """Factors of the means of one batch; or, before they are divided by the step's, its counts."""

    frames: float = 1.0
    """Recorded mel frames: reconstruction and stop terms."""
    cells: float = 1.0
    """Decoder steps times symbols: guided attention."""
    pairs: float = 1.0
    """Behaviours that a discriminator compares."""
    free_texts: float = 1.0
    """Utterances that the model says by itself."""
    free_frames: float = 1.0
    """Their mel frames."""
    free_steps: float = 1.0
    """Their decoder steps."""


WHOLE = Shares()
"""Of a batch that is all of its step."""


def counted(
    frames: Numbers, symbols: Numbers, free_frames: Numbers, reduction_factor: int
) -> Shares:
    """The counts of one batch.

    Args:
        frames: ``[B]``, mel frames of its recordings.
        symbols: ``[B]``, of their texts.
        free_frames: ``[G]``, mel frames of what the model says by itself, or, where that is made
            within the step, of its recordings.
        reduction_factor: R, mel frames a decoder step.
    """
    steps = -(-frames // reduction_factor)
    return Shares(
        frames=float(frames.sum()),
        cells=float((steps * symbols).sum()),
        pairs=float(min(len(frames), len(free_frames))),
        free_texts=float(len(free_frames)),
        free_frames=float(free_frames.sum()),
        free_steps=float((-(-free_frames // reduction_factor)).sum()),
    )


def divided(counts: Sequence[Shares]) -> list[Shares]:
    """The share of each batch of a step: its counts over those of all; 0 of nothing."""
    totals = [sum(values) for values in zip(*map(astuple, counts), strict=True)]
    return [
        Shares(*(count / total if total else 0.0 for count, total in zip(own, totals, strict=True)))
        for own in map(astuple, counts)
    ]


def weighed(term: T, readings: dict[str, Tensor], share: float) -> tuple[T, dict[str, Tensor]]:
    """A mean, or None, and what was read beside it, times the share of its batch."""
    weighed_readings = {name: value * share for name, value in readings.items()}
    return (None if term is None else term * share), weighed_readings
