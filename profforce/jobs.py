"""What torchrun says of the processes that it has started, as far as it is known without PyTorch.

A group that is started anew has to find the run that it had begun: its folder bears the job's name,
and a small file in the user's cache tells where it is.
"""

import contextlib
import os
import re
import time
from pathlib import Path

from platformdirs import user_cache_path

from profforce.errors import UserError

CAUSE_S = 10.0
"""Longest wait for the process whose end is the reason of this one's."""
MARK = ".torchrun"
"""File of a run folder that names the job that made it."""


class LostError(UserError):
    """The processes of a run no longer go together: one ended, or none answered in time."""

    exit_code = 1


def let_the_cause_end() -> None:
    """Wait for the process that was the reason to end, as long as torchrun watches over both.

    It tells of the first end only, which has to be the cause and not what follows from it. Its
    SIGTERM, which comes at once to all that are left, ends the wait.
    """
    if launched():
        time.sleep(CAUSE_S)


def launched() -> bool:
    """Whether the parent of this process is torchrun, or launch, which watches over it."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def started_by_torchrun() -> bool:
    """Whether this process is one of a group that torchrun, or its like, has started."""
    return launched() or int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    """Number of this process in its group; 0 alone."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """How often torchrun has started this group anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def job() -> str:
    """Name of the group over all its restarts: torchrun's, or that of torchrun's process."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"torchrun-{os.getppid()}" if name == "none" else name


def begin(folder: Path) -> None:
    """Note that this job trains in ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(job(), encoding="utf-8")
    with contextlib.suppress(OSError):  # no home: a restart needs hydra.run.dir then
        _pointer().parent.mkdir(parents=True, exist_ok=True)
        _pointer().write_text(str(folder), encoding="utf-8")


def end() -> None:
    """Forget where the job trained: it is done."""
    with contextlib.suppress(OSError):
        _pointer().unlink(missing_ok=True)


def begun(folder: Path) -> Path | None:
    """Where this job has trained before it was started anew: in ``folder`` or where it noted."""
    if not restarts():
        return None
    candidates = [folder]
    with contextlib.suppress(OSError):
        candidates.append(Path(_pointer().read_text(encoding="utf-8")))
    return next(filter(_is_ours, candidates), None)


def _is_ours(folder: Path) -> bool:
    try:
        return (folder / MARK).read_text(encoding="utf-8") == job()
    except OSError:
        return False


def _pointer() -> Path:
    return user_cache_path("profforce") / "jobs" / re.sub(r"[^\w.-]", "_", job())
