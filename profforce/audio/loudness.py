"""Loudness after ITU-R BS.1770, and audio brought to one. Audio is mono ``[N]``, full scale 1.0."""

import math

import torch
import torchaudio
from torch import Tensor

BLOCK_S = 0.4
"""What BS.1770 averages over; shorter audio is repeated until it is as long."""
MAX_PEAK = 10 ** (-1 / 20)
"""No sample is raised above -1 dB of full scale."""

HEADROOM = 0.5


def loudness_lufs(audio: Tensor, sample_rate: int) -> float:
    """Integrated loudness of ``audio``, in LUFS; NaN for silence."""
    least = math.ceil(BLOCK_S * sample_rate)
    if audio.numel() == 0 or not bool(audio.any()):
        return math.nan
    if len(audio) < least:
        audio = audio.repeat(-(-least // len(audio)))[:least]
    # torchaudio clamps its filters' outputs to full scale, so loud audio is measured at half of it.
    scale = min(1.0, HEADROOM / float(audio.abs().max()))
    measured = torchaudio.functional.loudness(audio[None].double() * scale, sample_rate)
    return float(measured) - 20 * math.log10(scale)


def to_loudness(audio: Tensor, sample_rate: int, lufs: float) -> tuple[Tensor, float]:
    """``audio`` at ``lufs``, or as near as its peak allows; and the loudness it then has.

    What is too quiet to be measured (below -70 LUFS throughout) stays as it is, with NaN.
    """
    before = loudness_lufs(audio, sample_rate)
    if not math.isfinite(before):
        return audio, math.nan
    peak = float(audio.abs().max())
    gain = min(10 ** ((lufs - before) / 20), max(MAX_PEAK / peak, 1.0) if peak else 1.0)
    return (audio.double() * gain).to(torch.float32), before + 20 * math.log10(gain)
