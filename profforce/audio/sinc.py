"""Resampling between rates that have hardly a common divisor, such as 22,050 and 44,101 Hz.

torchaudio keeps a filter for each phase, of which such rates have as many as the target has samples
a second: gigabytes of mostly zeros. Here each sample's filter is made when it is needed.
"""

import math

import torch
from torch import Tensor

BLOCK = 2**20
"""Filter values that are held at once."""


def interpolate(
    audio: Tensor, from_hz: int, to_hz: int, *, filter_width: int, rolloff: float
) -> Tensor:
    """``audio [..., N]`` at ``to_hz``: what ``torchaudio.functional.resample`` gives, to rounding.

    Args:
        audio: float samples at ``from_hz``.
        from_hz: a positive rate.
        to_hz: a positive rate.
        filter_width: zero crossings of the sinc at each side, under a Hann window.
        rolloff: where the band ends, as a share of the lower of the two Nyquist frequencies.

    Returns:
        ``[..., ceil(N * to_hz / from_hz)]``.
    """
    common = math.gcd(from_hz, to_hz)
    step, made = from_hz // common, to_hz // common
    band = min(step, made) * rolloff / step  # zero crossings a sample of the input
    reach = math.ceil(filter_width / band)
    total = -(-audio.shape[-1] * made // step)
    padded = torch.nn.functional.pad(audio, (reach, reach + 1))
    offsets = torch.arange(-reach, reach + 2, device=audio.device)
    parts = []
    for numbers in torch.arange(total, device=audio.device).split(max(1, BLOCK // len(offsets))):
        whole, rest = numbers * step // made, numbers * step % made
        distance = offsets - (rest.double() / made)[:, None]
        filters = _windowed_sinc(distance * band, filter_width) * band
        around = padded[..., (whole[:, None] + offsets + reach).clamp(max=padded.shape[-1] - 1)]
        parts.append((around * filters.to(audio.dtype)).sum(-1))
    return torch.cat(parts, -1) if parts else audio[..., :0]


def _windowed_sinc(crossings: Tensor, width: int) -> Tensor:
    within = crossings.clamp(-width, width)
    return torch.sinc(within) * torch.cos(within * (math.pi / width / 2)).square()
