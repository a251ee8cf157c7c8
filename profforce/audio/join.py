"""Pieces of speech joined to one: silence between them, no click where they meet.

Audio is mono ``[N]``; N_i samples a piece.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FADE_S = 0.005


def join_audio(pieces: Sequence[Tensor], pauses: Sequence[int], *, fade: int) -> Tensor:
    """``pieces`` in order, with ``pauses[i]`` zeros after the i-th: ``[sum N_i + sum pauses]``.

    Where a piece meets the next one it fades out and in along half a cosine of ``fade`` samples
    (half the piece at most); the outer ends stay as they are.

    Raises:
        ValueError: if there are no pieces, or not one pause fewer than pieces.
    """
    if not pieces or len(pauses) != len(pieces) - 1:
        raise ValueError(f"{len(pieces)} pieces need one pause fewer, got {len(pauses)}")
    last = len(pieces) - 1
    parts: list[Tensor] = []
    for number, piece in enumerate(pieces):
        parts.append(_faded(piece, fade, begin=number > 0, end=number < last))
        if number < last:
            parts.append(piece.new_zeros(pauses[number]))
    return torch.cat(parts)


def join_mels(pieces: Sequence[Tensor], pauses: Sequence[int], *, silence: float) -> Tensor:
    """``pieces [T_i, M]`` in order with ``pauses[i]`` frames of the value ``silence`` between."""
    parts = [pieces[0]]
    for piece, frames in zip(pieces[1:], pauses, strict=True):
        parts += [piece.new_full((frames, piece.shape[1]), silence), piece]
    return torch.cat(parts)


def _faded(audio: Tensor, fade: int, *, begin: bool, end: bool) -> Tensor:
    length = min(fade, len(audio) // 2)
    if not length or not (begin or end):
        return audio
    steps = torch.arange(1, length + 1, dtype=audio.dtype, device=audio.device) / (length + 1)
    ramp = (1 - (steps * math.pi).cos()) / 2
    audio = audio.clone()
    if begin:
        audio[:length] *= ramp
    if end:
        audio[-length:] *= ramp.flip(0)
    return audio
