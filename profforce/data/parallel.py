"""A map over processes that also works where processes are spawned (Windows, macOS)."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from profforce.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

MAX_WORKERS = 8
QUEUE_PER_WORKER = 4
"""Tasks in flight per worker: bounds the memory that waiting results take."""


def num_cpus() -> int:
    """CPUs this process may use, at most :data:`MAX_WORKERS`."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    return min(os.cpu_count() or 1, MAX_WORKERS)


def map_unordered(
    function: Callable[[T], R], items: Sequence[T], *, num_workers: int
) -> Iterator[tuple[int, R]]:
    """Yield ``(position, function(item))`` for every item, in the order they finish.

    ``function`` has to be a module's own function (or a picklable callable). One worker means
    this very process, in order. The first exception stops the map and is raised here.
    """
    if num_workers <= 1:
        for position, item in enumerate(items):
            yield position, function(item)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=num_workers, mp_context=context)
    try:
        yield from _drain(pool, function, items, num_workers * QUEUE_PER_WORKER)
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process ended abruptly",
            remedy="it may have run out of memory; run the command again, it resumes",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _drain(
    pool: ProcessPoolExecutor, function: Callable[[T], R], items: Sequence[T], limit: int
) -> Iterator[tuple[int, R]]:
    queue = iter(enumerate(items))
    running: dict[Future[R], int] = {}
    while True:
        while len(running) < limit and (task := next(queue, None)) is not None:
            running[pool.submit(function, task[1])] = task[0]
        if not running:
            return
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            yield running.pop(future), future.result()
