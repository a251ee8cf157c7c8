"""Why a file cannot be written; libraries often tell only that it could not."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""What a disk that takes no more says."""
PROBE = bytes(2**20)


@contextmanager
def told_by_system(path: Path) -> Iterator[None]:
    """Raise the system's own error where a library fails to write ``path`` and names none.

    PyTorch tells of a place in a file, libsndfile of a system error, numpy of items requested and
    written. The system is asked once more, by writing on at the file's end: the caller throws that
    file away. An error of another reason stays as it is.

    Raises:
        OSError: with the number and the words of the system.
    """
    try:
        yield
    except Exception as err:
        if isinstance(err, OSError) and err.errno is not None:
            raise
        if (refusal := _refusal(path)) is not None:
            raise refusal from err
        raise


def _refusal(path: Path) -> OSError | None:
    try:
        with path.open("ab") as file:
            file.write(PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as err:
        return err
    return None
