"""The files of a checkpoint, and what can be wrong with them."""

import hashlib
from pathlib import Path

from profforce.errors import UserError

FORMAT = 1
WEIGHTS, STATE, META = "model.safetensors", "train_state.pt", "meta.json"
DIGESTS = "sha256"
"""Key of ``meta.json``: digests of the other two files."""


class DamagedCheckpointError(UserError):
    """A checkpoint that is not as it was written: the one before may still do."""


class SaveError(UserError):
    """A run's folder takes no more writing; what was saved before is untouched."""

    exit_code = 1
    """The command line was right, the task failed."""


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(err: BaseException) -> str:
    """The system's words, or the first line of an error, or its kind where it says nothing."""
    if isinstance(err, OSError) and err.strerror:
        return err.strerror if err.filename is None else f"{err.strerror}: {err.filename}"
    return str(err).splitlines()[0] if str(err) else type(err).__name__
