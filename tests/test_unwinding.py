"""A signal ends a command wherever it strikes; no room behind standard output is one line."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profforce.commands.unwinding import signals_unwind


class StruckInDestructor:
    """A signal comes while this object is taken away, so that what is raised is lost."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)
        for _ in range(1000):
            pass


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)],
    ids=["sigterm", "sigint"],
)
def test_a_signal_lost_in_a_destructor_comes_again(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hook, unwound = sys.unraisablehook, []
    try:
        with pytest.raises(raised), signals_unwind():
            try:
                StruckInDestructor(number)
                until = time.monotonic() + 20
                while time.monotonic() < until:
                    time.sleep(0.01)
            finally:
                unwound.append(True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert unwound and sys.unraisablehook is hook


def test_other_faults_of_destructors_are_still_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: seen.append(lost.exc_value))
    with signals_unwind():
        Broken()
    assert [str(error) for error in seen] == ["broken"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_no_room_behind_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "profforce", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: the output cannot be written; got No space left on device; make room for it"
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="of a POSIX shell")
@pytest.mark.parametrize(
    ("closing", "words", "code", "said"),
    [
        ("<&-", "sample --run . --out x --input -", 2, "standard input: holds no text"),
        (">&-", "--version", 0, ""),
        ("2>&-", "sample --run . --out x --text Hi.", 2, ""),
        ("<&- >&- 2>&-", "sample --run . --out x --input -", 2, ""),
    ],
    ids=["stdin", "stdout", "stderr", "all"],
)
def test_a_closed_stream_is_an_empty_one(
    closing: str, words: str, code: int, said: str, tmp_path: Path
) -> None:
    line = f"exec {sys.executable} -m profforce {words} {closing}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == code and done.stdout == ""
    assert "Traceback" not in done.stderr and said in done.stderr
    assert done.stderr.count("\n") == (1 if said else 0)
