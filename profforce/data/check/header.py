"""What the first bytes of an audio file tell: a wav that is cut, a rate nobody converts.

Source: "Multimedia Programming Interface and Data Specifications 1.0" (IBM and Microsoft, 1991).
"""

import struct
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, NamedTuple

from profforce.audio.rates import can_convert
from profforce.data.check import audio_kinds as kinds
from profforce.data.check.kinds import Kind

MAX_CHUNKS = 64
"""Chunks looked through for the data; writers put a handful before it."""
UNKNOWN_BYTES = 0x7FFFF000
"""A data size from here on stands for "until the end": sox and ffmpeg write so into pipes."""


class WavHeader(NamedTuple):
    """A wav's sample rate, its data's size by the header and as far as the file goes."""

    sample_rate: int
    data_bytes: int
    present_bytes: int

    @property
    def is_cut(self) -> bool:
        """Whether samples are missing at the end."""
        return not self.is_unbounded and self.present_bytes < self.data_bytes

    @property
    def is_unbounded(self) -> bool:
        """Whether the header leaves the length open."""
        return self.data_bytes >= UNKNOWN_BYTES


def header_defect(path: Path, sample_rate: int) -> tuple[Kind, str] | None:
    """What is wrong with a wav by its header, for a mel of ``sample_rate`` Hz; None for others.

    Reads a few dozen bytes. What cannot be read at all is left to who decodes the file.
    """
    return _defect(wav_header(path), sample_rate)


def wav_defect(file: BinaryIO | RawIOBase, size: int, sample_rate: int) -> tuple[Kind, str] | None:
    """As :func:`header_defect` for an open file of ``size`` bytes."""
    try:
        return _defect(_parse(file, size), sample_rate)
    except (OSError, ValueError):
        return None


def _defect(header: WavHeader | None, sample_rate: int) -> tuple[Kind, str] | None:
    if header is None:
        return None
    damaged = header.sample_rate == 0  # told by who decodes the file
    if not damaged and not can_convert(header.sample_rate, sample_rate):
        return kinds.AUDIO_ODD_RATE, f"{header.sample_rate} Hz"
    if header.is_cut:
        return (
            kinds.AUDIO_TRUNCATED,
            f"{header.present_bytes} of {header.data_bytes} bytes of sound",
        )
    return None


def wav_header(path: Path) -> WavHeader | None:
    """The header of a RIFF wav that has sound; None for any other file."""
    try:
        with path.open("rb") as file:
            return _parse(file, path.stat().st_size)
    except (OSError, ValueError):
        return None


def _parse(file: BinaryIO | RawIOBase, size: int) -> WavHeader | None:
    start = file.read(12)
    if len(start) < 12 or start[8:] != b"WAVE" or start[:4] not in (b"RIFF", b"RIFX"):
        return None
    order = "<" if start[:4] == b"RIFF" else ">"
    position, sample_rate = 12, 0
    for _ in range(MAX_CHUNKS):
        file.seek(position)
        head = file.read(16)
        if len(head) < 8:
            return None
        name, length = head[:4], struct.unpack(f"{order}I", head[4:8])[0]
        if name == b"data":
            return WavHeader(sample_rate, length, max(0, size - position - 8))
        if name == b"fmt " and len(head) == 16:
            sample_rate = struct.unpack(f"{order}I", head[12:16])[0]
        position += 8 + length + length % 2
    return None
