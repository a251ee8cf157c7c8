"""Progress on a terminal and in a pipe."""

import io
import logging
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from profforce import display
from profforce.display import _above_bar, training_display, work_display


def test_a_pipe_gets_sparse_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with work_display() as progress:
        for done in range(1, 101):
            progress("computing", done, 100)
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("computing: 100/100 after")
    assert out.err.count("\n") == 1
    with training_display(10) as report:
        assert report is None


def test_a_plain_line_tells_the_rate_since_the_work_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 100.0, 200.0, 210.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    with work_display() as progress:
        progress("first", 1, 9)  # long after the start: nothing is known of this work's rate
        progress("first", 21, 100)
        progress("other", 50, 100)
    assert capsys.readouterr().err.splitlines() == [
        "first: 1/9 after 100 s",
        "first: 21/100 after 200 s, 0.2/s, 395 s left",
        "other: 50/100 after 210 s",
    ]


def test_log_lines_scroll_above_the_bar() -> None:
    screen, results = io.StringIO(), io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60)
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        with _above_bar(Progress(console=console, redirect_stdout=False)):
            logging.getLogger("profforce.test").warning("step 7 saved")
            results.write("row\n")
        assert "step 7 saved" in screen.getvalue()
        assert handler.stream is sys.stderr
    finally:
        logging.getLogger().removeHandler(handler)
