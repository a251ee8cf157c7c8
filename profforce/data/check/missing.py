"""Why there is no audio file where a line says."""

import errno
import os
import stat
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from profforce.data.check import audio_kinds as kinds
from profforce.data.check.kinds import Kind

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
    name = _names(path.parent).get(fold(path.name))
    return None if name is None else str(path.with_name(name))


def _other_format(path: Path, name: str) -> str | None:
    if name.lower().endswith(OTHER_FORMATS):
        folders = dict.fromkeys((path.parent, path.parent.parent))
        tries = [folder / Path(name).name for folder in folders]
    else:
        tries = [path.with_suffix(suffix) for suffix in OTHER_FORMATS]
    return next((str(path) for path in tries if _names(path.parent).get(fold(path.name))), None)


@lru_cache(maxsize=4)
def _names(folder: Path) -> dict[str, str]:
    """File names of ``folder`` by their folded form; empty where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {fold(entry.name): entry.name for entry in entries if not entry.is_dir()}
    except (OSError, ValueError):
        return {}


def fold(name: str) -> str:
    """What two names have in common that differ in case or Unicode form alone."""
    return unicodedata.normalize("NFC", name).casefold()
