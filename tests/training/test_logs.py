"""The run's own records on a disk that takes no more."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profforce.training.logs import RunLog

resource: Any = pytest.importorskip("resource")
MOST = 2**14


@pytest.fixture
def small_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_what_the_board_could_not_write_is_told_once_by_its_close(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hook = threading.excepthook
    log = RunLog(tmp_path, 0)
    log.board.add_text("long", "x" * 2 * MOST)
    with pytest.raises(OSError, match="File too large"):
        log.close()
    assert "Traceback" not in capfd.readouterr().err
    assert threading.excepthook is hook


def test_other_threads_are_told_of_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: told.append(str(found.exc_value)))
    log = RunLog(tmp_path, 0)

    def fail() -> None:
        raise ValueError("of a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    log.close()
    assert told == ["of a thread"]
