"""Why there is no audio file where a line says."""

import errno
import os
import stat
import unicodedata
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from profforce.data.check import audio_kinds as kinds
from profforce.data.check.kinds import Kind
from profforce.data.check.table import PackedTexts, digest

OTHER_FORMATS = (".m4a", ".aac", ".opus", ".wma", ".aiff", ".aif", ".g722", ".sph", ".pcm", ".webm")
"""Audio that people have and that is not read."""
BY_ERRNO = {errno.ELOOP: kinds.AUDIO_LOOP, errno.EACCES: kinds.AUDIO_UNREADABLE}


def why_missing(name: str, candidates: Sequence[Path]) -> tuple[Kind, str]:
    """The kind of defect and what was found, given the paths where ``name`` was looked for."""
    for path in candidates:
        if found := _why_not(path):
            return found
    for path in candidates:
        if other := _alike(path):
            return kinds.AUDIO_CASE, other
    for path in candidates[:1]:
        if other := _other_format(path, name):
            return kinds.AUDIO_FORMAT, other
    return kinds.AUDIO_MISSING, repr(name)


def _why_not(path: Path) -> tuple[Kind, str] | None:
    """What lies at ``path`` that is no file; None where nothing lies."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in BY_ERRNO:
            return BY_ERRNO[error.errno], f"{path}: {error.strerror}"
        return (kinds.AUDIO_DANGLING, _target(path)) if _is_link(path) else None
    except ValueError:  # a NUL in the name: nothing can be there
        return None
    return None if stat.S_ISREG(mode) else (kinds.AUDIO_NOT_A_FILE, str(path))


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:  # a name too long, or a folder that may not be searched
        return False


def _target(path: Path) -> str:
    return f"{path} -> {path.readlink()}"


def _alike(path: Path) -> str | None:
    """A file of the same folder that differs from ``path`` in case or Unicode form alone."""
    name = _names(path.parent).like(path.name)
    return None if name is None else str(path.with_name(name))


def _other_format(path: Path, name: str) -> str | None:
    if name.lower().endswith(OTHER_FORMATS):
        folders = dict.fromkeys((path.parent, path.parent.parent))
        tries = [folder / Path(name).name for folder in folders]
    else:
        tries = [path.with_suffix(suffix) for suffix in OTHER_FORMATS]
    return next((str(path) for path in tries if _names(path.parent).like(path.name)), None)


class _Names:
    """The file names of a folder by their folded form, in some 40 bytes each."""

    def __init__(self, folder: Path) -> None:
        self._names = PackedTexts()
        digests = array("Q")
        with suppress(OSError, ValueError), os.scandir(folder) as entries:
            for entry in entries:
                self._names.append(entry.name)
                digests.append(digest(fold(entry.name)))
        values = np.asarray(digests, dtype=np.uint64)
        self._order = np.argsort(values)
        self._digests = values[self._order]

    def like(self, name: str) -> str | None:
        """A name that differs from ``name`` in case or Unicode form at most."""
        wanted = np.uint64(digest(fold(name)))
        position = int(np.searchsorted(self._digests, wanted))
        if position == len(self._digests) or self._digests[position] != wanted:
            return None
        return self._names[int(self._order[position])]


def _names(folder: Path) -> _Names:
    try:
        changed = folder.stat().st_mtime_ns
    except (OSError, ValueError):
        changed = 0
    return _names_at(folder, changed)


@lru_cache(maxsize=4)
def _names_at(folder: Path, changed: int) -> _Names:
    return _Names(folder)


def fold(name: str) -> str:
    """What two names have in common that differ in case or Unicode form alone."""
    return unicodedata.normalize("NFC", name).casefold()
