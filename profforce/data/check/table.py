"""What is remembered of each line: digests of 8 bytes and numbers, never texts.

Two different texts among ten million share a digest with a probability of 3e-6.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]


def digest(text: str) -> int:
    """64 bits of ``text``; 0 for the empty one, which equals no other."""
    if not text:
        return 0
    raw = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") or 1


class Table:
    """The rows of a manifest by position; about 50 bytes each."""

    def __init__(self) -> None:
        self.lines = array("I")
        """Line numbers, from 1."""
        self.ids = array("Q")
        self.folded_ids = array("Q")
        self.contents = array("Q")
        """Of the whole line."""
        self.words = array("Q")
        """Of the letters and digits of the transcript."""
        self.audio = array("Q")
        """Of the audio's path; 0 where none was found."""
        self.num_symbols = array("I")
        self.held_out = array("b")
        """1 on the validation side, 0 on the training side, -1 where the row is not used."""

    def __len__(self) -> int:
        return len(self.lines)


def repeated(digests: "array[int] | Digests") -> Iterator[tuple[int, int]]:
    """(position, position of the first equal one) of every repetition, 0 being equal to none."""
    values: Digests = np.asarray(digests, dtype=np.uint64)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    later = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)) + 1
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    firsts = order[starts[np.searchsorted(starts, later, side="right") - 1]]
    positions = order[later]
    for k in np.argsort(positions, kind="stable").tolist():
        yield int(positions[k]), int(firsts[k])


class PackedTexts(Sequence[str]):
    """A sequence of short texts in a fifth of a list's memory."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("Q", [0])

    def append(self, text: str) -> None:
        """Add ``text`` at the end; a file's name may hold bytes that are not UTF-8."""
        self._bytes += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> "list[str]": ...

    def __getitem__(self, position: int | slice) -> "str | list[str]":
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        position = range(len(self))[position]
        raw = self._bytes[self._ends[position] : self._ends[position + 1]]
        return raw.decode("utf-8", "surrogateescape")
