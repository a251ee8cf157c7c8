"""Audio that is written as it is made: to a pipe, or into a file that grows.

A wav header states lengths that are not known yet: 2^32 - 1 stands for "to the end", as ffmpeg and
sox write it to pipes. Once it is closed, a file states what it holds.
"""

import struct
import sys
from io import SEEK_END, BytesIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from profforce.config import AudioFormat, AudioSubtype
from profforce.errors import UserError

UNKNOWN = 2**32 - 1
HEADER_BYTES = 44
WIDTHS = {AudioSubtype.PCM_16: 2, AudioSubtype.PCM_24: 3, AudioSubtype.FLOAT: 4}
"""Bytes a sample."""
STDOUT = "-"


class AudioSink:
    """Where mono audio goes, bit by bit; a context manager."""

    def __init__(
        self, path: Path | str, rate: int, kind: AudioFormat, subtype: AudioSubtype
    ) -> None:
        """Open ``path``, or standard output for ``-``.

        Raises:
            UserError: if it cannot be opened.
        """
        self._where, self._rate, self._subtype = path, rate, subtype
        self._has_header = kind is AudioFormat.wav
        try:
            self._file: BinaryIO = (
                sys.stdout.buffer if path == STDOUT else Path(path).open("wb")  # noqa: SIM115
            )
            if self._has_header:
                self._file.write(wav_header(self._rate, subtype, UNKNOWN))
                self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as err:
            raise UserError("cannot write audio", where=path, got=err.strerror) from err

    def write(self, audio: NDArray[np.float32]) -> None:
        """Append ``audio [N]``; integer samples are clipped at full scale.

        Raises:
            UserError: if it cannot be written, or holds values that are not finite.
            BrokenPipeError: if nobody reads standard output any more.
        """
        if not np.isfinite(audio).all():
            raise UserError(
                "the model made values that are not finite (nan or inf)",
                where=self._where,
                remedy="try another checkpoint",
            )
        data = encoded(audio, self._rate, self._subtype)
        try:
            self._file.write(data)
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as err:
            raise UserError("cannot write audio", where=self._where, got=err.strerror) from err

    def __enter__(self) -> "AudioSink":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close a file, with the length that it has got, whatever ended the writing.

        That is asked of the file: a signal may have come in the middle of a chunk.
        """
        if self._where == STDOUT:
            return
        with self._file:
            header = HEADER_BYTES * self._has_header
            written = self._file.seek(0, SEEK_END) - header
            written -= written % WIDTHS[self._subtype]
            self._file.truncate(header + written)
            if self._has_header:
                self._file.seek(header + written)
                self._file.write(bytes(written % 2))  # chunks are of whole words
                self._file.seek(0)
                self._file.write(wav_header(self._rate, self._subtype, written))


def encoded(audio: NDArray[np.float32], rate: int, subtype: AudioSubtype) -> bytes:
    """Samples ``[N]`` as they stand in a file."""
    if subtype is not AudioSubtype.FLOAT:
        audio = audio.clip(-1.0, 1.0)
    buffer = BytesIO()
    soundfile.write(buffer, audio, rate, format="RAW", subtype=str(subtype), endian="LITTLE")
    return buffer.getvalue()


def wav_header(rate: int, subtype: AudioSubtype, num_bytes: int) -> bytes:
    """The 44 bytes before ``num_bytes`` of mono samples."""
    width = WIDTHS[subtype]
    tag = 3 if subtype is AudioSubtype.FLOAT else 1
    whole = min(num_bytes + num_bytes % 2 + HEADER_BYTES - 8, UNKNOWN)
    form = struct.pack("<HHIIHH", tag, 1, rate, rate * width, width, 8 * width)
    return b"".join(
        [
            *(b"RIFF", struct.pack("<I", whole), b"WAVE"),
            *(b"fmt ", struct.pack("<I", len(form)), form),
            *(b"data", struct.pack("<I", min(num_bytes, UNKNOWN))),
        ]
    )
