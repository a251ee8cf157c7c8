"""A run folder is one training's at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from profforce import runs
from profforce.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from profforce.runs import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_process_until_it_ends_however_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PATIENCE_S", 0.1)
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for refuses in (runs.refuse_used, runs.refuse_busy):
            with pytest.raises(UserError) as caught:
                refuses(tmp_path)
            said = str(caught.value)
            assert str(tmp_path) in said and f"process {other.pid} of " in said
            assert "another training writes into this folder" in said and "\n" not in said
    finally:
        other.kill()
        other.wait()
    with runs.held(tmp_path):
        pass


def test_a_process_may_hold_twice_what_it_holds_and_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda _: pytest.fail("waits for itself"))
    with runs.held(tmp_path):
        runs.refuse_used(tmp_path)
        with runs.held(tmp_path):
            pass
        runs.refuse_busy(tmp_path)
    words = [sys.executable, "-c", HOLD.replace("60", "0"), str(tmp_path)]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "held\n"


def test_to_look_changes_nothing(tmp_path: Path) -> None:
    runs.refuse_used(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / runs.LOCK).mkdir()
    with pytest.raises(UserError, match="cannot be written"), runs.held(tmp_path):
        pass
