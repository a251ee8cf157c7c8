"""Files that lie in an uncompressed tar: read by their place, without unpacking."""

import io
import tarfile
from pathlib import Path
from typing import BinaryIO


class Region(io.RawIOBase):
    """A part of an open file as a file of its own, read-only; moves the file's position."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size = file, offset, size
        self._position = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Position within the part."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: object) -> int:
        """As of any file; nothing beyond the part."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        self._file.seek(self._offset + self._position)
        raw = self._file.read(max(0, min(len(view), self._size - self._position)))
        view[: len(raw)] = raw
        self._position += len(raw)
        return len(raw)


def member_bytes(path: Path) -> bytes | None:
    """The content of ``FOLDER/X.tar/NAME``; None if that is no member of a tar.

    The tar is searched from its start: for a few files, not for a corpus.
    """
    for tar in path.parents:
        if tar.suffix == ".tar" and tar.is_file():
            name = path.relative_to(tar).as_posix()
            try:
                with tarfile.open(tar, "r:") as archive:
                    file = archive.extractfile(name)
                    return None if file is None else file.read()
            except (KeyError, OSError, tarfile.TarError):
                return None
    return None
