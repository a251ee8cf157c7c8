"""Texts that are divided among processes: torchrun -m profforce sample, and evaluate.

Each process takes every so-manieth text; the first one prints and writes what all have made, in the
order of the texts, so that nothing shows how many there were.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from profforce.jobs import rank, started_by_torchrun

if TYPE_CHECKING:
    from profforce.data.progress import Progress
    from profforce.training.distributed import Team

T = TypeVar("T")
PATIENCE_MINUTES = 24 * 60.0
"""Longest wait for the others, who may have the longer texts."""


@contextmanager
def team_for(device: str) -> Iterator["Team"]:
    """The processes that torchrun has started, or this one alone."""
    from profforce.training.distributed import ALONE, joined

    if not started_by_torchrun():
        yield ALONE
        return
    with joined(device, PATIENCE_MINUTES) as team:
        yield team


@contextmanager
def shown_by_first() -> Iterator["Progress"]:
    """Log lines and progress of the first process; the others only tell of errors."""
    import logging
    import sys

    from profforce.display import log_to_stderr, work_display

    if rank():
        where = f"process {rank()}: %(message)s"
        logging.basicConfig(level=logging.ERROR, format=where, stream=sys.stderr)
        yield _silent
        return
    log_to_stderr()
    with work_display() as progress:
        yield progress


def device_for(team: "Team", device: str) -> str:
    """``device`` as it is called in this process."""
    from profforce.training.distributed import local_device

    return device if team.size == 1 else local_device(device)


def in_order(team: "Team", rows: Iterator[T], total: int, at_once: int) -> Iterator[T]:
    """What all processes make, in the order of the texts; nothing in all but the first.

    Args:
        team: who takes part.
        rows: those of this process.
        total: of all processes.
        at_once: rows of each process that are collected together.
    """
    from profforce.training.distributed import interleaved

    if team.size == 1:
        yield from rows
        return
    most = -(-total // team.size)
    for _ in range(0, most, at_once):
        parts = team.gathered("what the others speak", list(islice(rows, at_once)))
        if team.is_first:
            yield from interleaved(parts)


def _silent(label: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""
