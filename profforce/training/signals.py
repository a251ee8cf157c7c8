"""SIGINT and SIGTERM become a flag that the loop reads between steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

import torch

from profforce.training.distributed import Team


class StopFlag:
    """Number of the signal that asked the run to end, or None."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def none_stops(self, team: Team, over: bool) -> bool:
        """Whether all processes go on; a signal that came to any of them has come to all.

        Args:
            team: who has to agree.
            over: the time is, by the first one's clock.
        """
        mine = [self.signal == signal.SIGINT, self.signal == signal.SIGTERM, over and team.is_first]
        mine[1] |= team.is_abandoned
        interrupted, ended, late = team.summed(
            torch.tensor(mine, dtype=torch.float64), "whether to go on"
        ).tolist()
        if interrupted or ended:
            self.signal = int(signal.SIGINT if interrupted else signal.SIGTERM)
        return not (interrupted or ended or late)


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, which a terminal sends to all; we see it after.

    So that it does not kill the data workers while the loop waits for their batch. Windows has no
    signal masks: there the workers end, and the run with them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # the first spawn would start it, which unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Catch the first SIGINT or SIGTERM; a second SIGINT interrupts at once."""
    flag = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.signal = number

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {number: signal.signal(number, handle) for number in numbers}
    except ValueError:  # not the main thread: signals are the caller's affair
        yield flag
        return
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
