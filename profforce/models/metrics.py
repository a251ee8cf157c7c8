"""How far a free run is from the truth: distances and failure signs, without any ASR.

Shapes: T mel frames, M mel channels, U decoder steps, S symbols, G guided heads.
"""

import math

import librosa
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CEPSTRAL_ORDER = 13


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
    return _mean_cost(a, b, "cityblock") / a.shape[1]


def mel_cepstral_distortion(a: Tensor, b: Tensor) -> float:
    """Mel-cepstral distortion along the best alignment, in dB (Kubichek 1993).

    ``10 / ln 10 * sqrt(2 * sum of squares)`` of the differences of coefficients 1 to 13 of the
    natural-log mel's cosine transform; the loudness, coefficient 0, is left out. Figures of other
    analyses (WORLD's, another number of channels) are not comparable.

    Args:
        a: ``[T1, M]``, T1 >= 1.
        b: ``[T2, M]``, T2 >= 1.

    Returns:
        0 for equal mels, infinity if a value is not finite.
    """
    if not (bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
        return float("inf")
    cosines = _cepstral_basis(a.shape[1])
    return 10 / math.log(10) * math.sqrt(2) * _mean_cost(a @ cosines, b @ cosines, "euclidean")


def _cepstral_basis(channels: int) -> Tensor:
    """``[M, 13]``, from a log mel to the coefficients of its cosine series."""
    places = (torch.arange(channels) + 0.5) * math.pi / channels
    orders = torch.arange(1, CEPSTRAL_ORDER + 1)
    return torch.cos(places[:, None] * orders) / channels


def warping_path(a: Tensor, b: Tensor) -> npt.NDArray[np.int64]:
    """``[P, 2]``, the frames of ``a [T1, M]`` and ``b [T2, M]`` that fit best, first to last."""
    _, path = _warped(a, b, "cityblock")
    return path[::-1]


def _mean_cost(a: Tensor, b: Tensor, metric: str) -> float:
    cost, path = _warped(a, b, metric)
    return float(cost[-1, -1] / len(path))


def _warped(
    a: Tensor, b: Tensor, metric: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Accumulated cost ``[T1, T2]`` and path ``[P, 2]`` from the last frames to the first."""
    cost, path = librosa.sequence.dtw(
        a.T.double().cpu().numpy(), b.T.double().cpu().numpy(), metric=metric
    )
    return cost, path


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
