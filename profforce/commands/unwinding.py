"""Signals that run the ``finally`` blocks, also where Python would lose them."""

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.05
"""From an interruption that was lost to the next attempt: by then the destructor is done."""


@contextmanager
def signals_unwind() -> Iterator[None]:
    """Let SIGTERM run the ``finally`` blocks, as Ctrl-C does; training has its own handler.

    What a handler raises inside a destructor or a callback from C, Python only reports, and the
    command would go on to its end. It is raised again until it gets through.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread: signals are the caller's affair
        yield
        return
    report = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if _raised_again(lost.exc_value) else report(lost)
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGTERM, before)


def _raised_again(lost: BaseException | None) -> bool:
    """Whether ``lost`` is an interruption, which then comes again in a moment."""
    if isinstance(lost, KeyboardInterrupt):
        number = signal.SIGINT
    elif isinstance(lost, SystemExit) and lost.code == 128 + signal.SIGTERM:
        number = signal.SIGTERM
    else:
        return False
    again = threading.Timer(AGAIN_S, _thread.interrupt_main, [number])
    again.daemon = True
    again.start()
    return True
