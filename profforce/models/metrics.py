"""How far a free run is from the truth: distances and failure signs, without any ASR.

Shapes: T mel frames, M mel channels, U decoder steps, S symbols, G guided heads.
"""

import librosa
import numpy as np
import torch
from torch import Tensor


def dtw_mel_distance(a: Tensor, b: Tensor) -> float:
    """Mean absolute natural-log difference along the best alignment of two mels.

    Dynamic time warping with the classic steps (Sakoe and Chiba 1978), so that a different speed
    costs little and a skipped or repeated word costs much.

    Args:
        a: ``[T1, M]``, T1 >= 1.
        b: ``[T2, M]``, T2 >= 1.

    Returns:
        Nepers a channel and path step; 0 for equal mels, infinity if a value is not finite.
    """
    if not (bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
        return float("inf")
    cost, path = librosa.sequence.dtw(
        a.T.double().cpu().numpy(), b.T.double().cpu().numpy(), metric="cityblock"
    )
    return float(cost[-1, -1] / len(path) / a.shape[1])


def mean_alignment(alignments: Tensor) -> Tensor:
    """``[G, U, S]`` of the guided heads -> the clearest head's ``[U, S]`` (highest focus rate)."""
    focus = alignments.amax(-1).mean(-1)
    return alignments[int(focus.argmax())]


def focus_rate(alignment: Tensor) -> float:
    """Mean over steps of the largest weight of ``alignment [U, S]`` (Ren et al. 2019, eq. 5)."""
    return float(alignment.amax(-1).mean()) if alignment.numel() else 0.0


def alignment_coverage(alignment: Tensor, threshold: float = 0.25) -> float:
    """Share of symbols of ``alignment [U, S]`` that were attended at some time.

    A symbol counts if it, together with its two neighbours, gets more than ``threshold`` of some
    step's attention, for attention often rests between two symbols; and more than twice what even
    attention would give the three, lest a model that attends to nothing cover a short text.
    """
    if not alignment.numel():
        return 0.0
    padded = torch.nn.functional.pad(alignment, (1, 1))
    around = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    even = min(3 / alignment.shape[1], 1.0)
    if alignment.shape[1] <= 3:  # the three are everything: look at each symbol alone
        around, even = alignment, 1 / alignment.shape[1]
    needed = max(threshold, min(2 * even, (1 + even) / 2))
    return float((around.amax(0) >= needed).float().mean())


def mean_or_nan(values: list[float]) -> float:
    """Mean of ``values``; NaN for none, so that an empty measurement shows."""
    return float(np.mean(values)) if values else float("nan")
