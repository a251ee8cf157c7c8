"""A signal whose exception was swallowed is raised again."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from profforce.sampling.interrupt import Interrupts


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where a shell runs the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Swallows:
    """Its destructor runs while a signal comes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_inside_a_destructor_is_raised_at_the_next_check() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        interrupts.check()
        thing = Swallows()
        del thing
        interrupts.check()
        pytest.fail("it was lost")
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_what_was_interrupted_ends_as_the_interruption() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as err:
            raise SystemError("returned a result with an exception set") from err
    with pytest.raises(ValueError, match="no signal"), Interrupts():
        raise ValueError("no signal came")


def test_what_a_signal_does_is_still_done_at_once() -> None:
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
            interrupts.check()
            assert seen == [signal.SIGTERM] * 2
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
