"""Columns of numbers and texts that may be larger than memory: appended to, then read by position.

A column starts in memory and can move into a file, which is mapped once it is whole. What reads a
column is the same in both cases, and goes to data workers as a path where there is one.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

T_co = TypeVar("T_co", covariant=True)
Array = npt.NDArray[Any]
ENCODING, ERRORS = "utf-8", "surrogateescape"
"""A file's name may hold bytes that are not UTF-8."""


class Column:
    """Numbers of one type, appended."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._memory = bytearray()
        self._file: BinaryIO | None = None

    def extend(self, values: npt.ArrayLike) -> None:
        """Add ``values`` at the end."""
        raw = np.asarray(values, dtype=self.dtype).tobytes()
        if self._file is None:
            self._memory += raw
        else:
            self._file.write(raw)

    def to_file(self, path: Path) -> None:
        """Go on in the file ``path``, which is made anew."""
        self._file = path.open("wb")
        self._file.write(self._memory)
        self._memory = bytearray()

    def close(self) -> None:
        """Finish the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def array(self) -> Array:
        """All of them, of a column in memory."""
        assert self._file is None, "a column in a file is mapped"
        return np.frombuffer(self._memory, dtype=self.dtype)


class TextColumn:
    """Texts, appended: their bytes and where each one ends."""

    def __init__(self) -> None:
        self.content, self.ends = Column(np.uint8), Column(np.int64)
        self._size = 0

    def extend(self, texts: Sequence[str]) -> None:
        """Add ``texts`` at the end."""
        raw = [text.encode(ENCODING, ERRORS) for text in texts]
        ends = np.cumsum([len(part) for part in raw], dtype=np.int64) + self._size
        self.content.extend(np.frombuffer(b"".join(raw), dtype=np.uint8))
        self.ends.extend(ends)
        self._size = int(ends[-1]) if len(ends) else self._size


class RaggedColumn:
    """Rows of numbers of different lengths, appended."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.content, self.ends = Column(dtype), Column(np.int64)
        self._size = 0

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Add ``rows`` at the end."""
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64) + self._size
        self.content.extend([number for row in rows for number in row])
        self.ends.extend(ends)
        self._size = int(ends[-1]) if len(ends) else self._size


def mapped(path: Path, dtype: npt.DTypeLike) -> Array:
    """The numbers in the file ``path``, mapped and read-only."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


class Stored:
    """Holds arrays; goes to another process with the paths of those that are mapped whole."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: _packed(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.open() if isinstance(value, _Mapped) else value)


class Texts(Stored, Sequence[str]):
    """Texts by position."""

    def __init__(self, content: Array, ends: Array) -> None:
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> list[str]: ...

    def __getitem__(self, position: int | slice) -> "str | list[str]":
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        first, last = span(self._ends, position)
        return self._content[first:last].tobytes().decode(ENCODING, ERRORS)


class Ragged(Stored, Sequence[Tensor]):
    """Rows of numbers by position, int64 each."""

    def __init__(self, content: Array, ends: Array) -> None:
        self._content, self._ends = content, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, position: int) -> Tensor: ...

    @overload
    def __getitem__(self, position: slice) -> list[Tensor]: ...

    def __getitem__(self, position: int | slice) -> "Tensor | list[Tensor]":
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        first, last = span(self._ends, position)
        return torch.from_numpy(self._content[first:last].astype(np.int64))

    def sizes(self) -> npt.NDArray[np.int64]:
        """Numbers in each row."""
        return np.diff(self._ends, prepend=0)


class Chosen(Stored, Sequence[T_co]):
    """Some of a sequence's entries, in the order of ``rows``."""

    def __init__(self, whole: Sequence[T_co], rows: Array) -> None:
        self.whole, self.rows = whole, rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, position: int) -> T_co: ...

    @overload
    def __getitem__(self, position: slice) -> "Chosen[T_co]": ...

    def __getitem__(self, position: int | slice) -> "T_co | Chosen[T_co]":
        if isinstance(position, slice):
            return Chosen(self.whole, self.rows[position])
        return self.whole[int(self.rows[position])]

    def __iter__(self) -> Iterator[T_co]:
        return (self.whole[row] for row in self.rows.tolist())


def span(ends: Array, position: int) -> tuple[int, int]:
    """First and end of row ``position``."""
    position = range(len(ends))[position]
    return int(ends[position - 1]) if position else 0, int(ends[position])


class _Mapped:
    """Stands for a mapped array in a pickle."""

    def __init__(self, array: "np.memmap[Any, Any]") -> None:
        assert array.filename is not None
        self.path, self.dtype = Path(array.filename), array.dtype

    def open(self) -> Array:
        return mapped(self.path, self.dtype)


def _packed(value: object) -> object:
    """``value``, or the path of a whole map; a view of one is copied."""
    if isinstance(value, np.memmap) and isinstance(value.base, np.memmap):
        return np.array(value)
    return _Mapped(value) if isinstance(value, np.memmap) else value
