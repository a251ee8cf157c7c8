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
        parts.append(faded(piece, fade, begin=number > 0, end=number < last))
        if number < last:
            parts.append(piece.new_zeros(pauses[number]))
    return torch.cat(parts)


class JoinStream:
    """:func:`join_audio` for pieces that come in parts; it keeps back two fades of each."""

    def __init__(self, *, fade: int) -> None:
        self._fade = fade
        self._kept: Tensor | None = None
        self._begins = False
        """The beginning of this piece is still to be faded in; that of the first one is not."""

    def push(self, audio: Tensor, *, last: bool, pause: int | None = None) -> Tensor:
        """What is certain with ``audio [n]``, n >= 0, of the piece.

        Args:
            audio: the next part.
            last: of the piece; all that was kept comes out.
            pause: zeros after the piece; None if no other follows.
        """
        kept = audio if self._kept is None else torch.cat([self._kept, audio])
        if self._begins and (last or len(kept) >= 2 * self._fade):
            kept = faded(kept, self._fade, begin=True, end=False)
            self._begins = False
        if not last:
            ready = max(len(kept) - 2 * self._fade, 0)
            self._kept = kept[ready:]
            return kept[:ready]
        self._kept, self._begins = None, True
        out = faded(kept, self._fade, begin=False, end=pause is not None)
        return torch.cat([out, out.new_zeros(pause)]) if pause else out


def join_mels(pieces: Sequence[Tensor], pauses: Sequence[int], *, silence: float) -> Tensor:
    """``pieces [T_i, M]`` in order with ``pauses[i]`` frames of the value ``silence`` between."""
    parts = [pieces[0]]
    for piece, frames in zip(pieces[1:], pauses, strict=True):
        parts += [piece.new_full((frames, piece.shape[1]), silence), piece]
    return torch.cat(parts)


def faded(audio: Tensor, fade: int, *, begin: bool, end: bool) -> Tensor:
    """``audio [N]`` that begins, ends along half a cosine of ``fade`` samples, at most N / 2."""
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
