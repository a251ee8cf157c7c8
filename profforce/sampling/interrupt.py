"""Signals that are not lost: raised again where work is handed on, if they were swallowed."""

import signal
from types import FrameType, TracebackType


class Interrupts:
    """Notes SIGINT and SIGTERM beside what they do already; a context manager.

    What a handler raises vanishes if it happens to run inside a destructor or a callback from C;
    somebody who pressed Ctrl-C then waits for the end of everything.
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._number: int | None = None

    def check(self) -> None:
        """Do again what the signal that came does, in case nobody noticed."""
        if self._number is not None:
            self._pass_on(self._number, None)

    def __enter__(self) -> "Interrupts":
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if callable(before):
                    signal.signal(number, self._note)
                    self._before[number] = before
        except ValueError:  # not the main thread: signals are the caller's affair
            pass
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        if isinstance(error, Exception):  # what was interrupted may have said it in its own words
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        assert callable(before)
        before(number, frame)
