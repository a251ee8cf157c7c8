"""Run folders, as far as they must be known without PyTorch."""

import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from profforce.errors import UserError

log = logging.getLogger(__name__)

LOCK = ".lock"
"""File of a run folder that is locked while a run trains there; says which process."""
PATIENCE_S = 1.0
"""Time to wait for a lock: whoever only looks holds it for a moment."""
BUSY = {errno.EAGAIN, errno.EACCES}
_MINE: set[Path] = set()
"""Locks that this process holds."""
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


def holds_run(folder: Path) -> bool:
    """Whether a run got as far as its first whole checkpoint here.

    A checkpoint whose replacement was cut off counts: a resume puts it back.
    """
    checkpoints = folder / "checkpoints"
    return any(checkpoints.glob("step-*")) or any(checkpoints.glob(".step-*.replaced"))


def refuse_used(folder: Path) -> None:
    """Raise :class:`UserError` if a run got as far as its first whole checkpoint here.

    Only then is there work to lose: a run killed before may simply start again. Also where another
    process trains at this moment.
    """
    if holds_run(folder):
        raise UserError(
            "the folder holds a run already",
            where=folder,
            remedy=f"continue it with --resume {folder}, or choose another hydra.run.dir",
        )
    refuse_busy(folder)


def refuse_busy(folder: Path) -> None:
    """Raise :class:`UserError` if another process trains in ``folder`` at this moment."""
    if (folder / LOCK).exists():
        with held(folder):
            pass


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others from training in ``folder`` for the time of the block.

    The lock ends with this process, however that ends. A second block of one process inside the
    first changes nothing.

    Raises:
        UserError: if another process holds it, or the folder cannot be written.
    """
    path = folder.resolve() / LOCK
    if path in _MINE:
        yield
        return
    try:
        with path.open("a+", encoding="utf-8") as file:
            if not _locked(file):
                raise _busy(folder, path)
            file.truncate(0)
            file.write(_me())
            file.flush()
            held_file = os.dup(file.fileno())  # the lock is that of all copies
    except OSError as err:
        raise UserError("the run folder cannot be written", where=path, got=err.strerror) from err
    _MINE.add(path)
    try:
        yield
    finally:
        _MINE.discard(path)
        os.close(held_file)


def _busy(folder: Path, path: Path) -> UserError:
    return UserError(
        "another training writes into this folder",
        where=folder,
        got=f"process {path.read_text(encoding='utf-8').strip()}",
        remedy=f"wait for it or end it, or choose another hydra.run.dir (if it is a machine that "
        f"is gone, remove {path})",
    )


def _me() -> str:
    return f"{os.getpid()} of {socket.gethostname()}\n"


def _locked(file: IO[str]) -> bool:
    """Lock ``file``; false if another one keeps it."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            _lock(file.fileno())
            return True
        except OSError as err:
            if err.errno in NO_LOCKS:
                log.warning("%s: no locks here: nobody notices two trainings in it", file.name)
                return True
            if err.errno not in BUSY:
                raise
        if time.monotonic() > until:
            return False
        time.sleep(PATIENCE_S / 10)


if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> None:
        """Of a byte far behind the words, which others have to read."""
        os.lseek(number, 2**30, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
