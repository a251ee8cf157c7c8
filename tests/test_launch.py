"""``profforce launch``: several processes with the exit code and the words of one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_run import made_corpus

from profforce.app import main


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["bench"], "'bench': cannot be divided among processes; expected train, sample, evaluate"),
        (["trian"], "did you mean 'train'?"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    words: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *words]) == 2
    assert line in capfd.readouterr().err


def test_a_launch_within_a_launch_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert main(["launch", "-n", "2", "train"]) == 2
    assert "leave out launch" in capfd.readouterr().err


def test_without_gpus_a_number_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["launch", "train"]) == 2
    assert "--processes: no GPU to count; give a number" in capfd.readouterr().err


LATE = """
import atexit, os, time
if os.environ.get("RANK") == "0":
    atexit.register(time.sleep, 3)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no gloo")
def test_the_exit_code_is_that_of_the_cause_however_late_it_ends(tmp_path: Path) -> None:
    """Process 0 finds no corpus, tells the other one, and takes its time to end."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    words = ["launch", "-n", "2", "train", "model=tiny", f"data.shards={tmp_path}/no-*.tar"]
    done = subprocess.run(
        [sys.executable, "-m", "profforce", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert "process 0 ended with exit code 2; its message is above" in lines
    assert any(line.startswith("process 1: error: process 0 failed at reading") for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_launched_run_is_saved_once_by_a_signal_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    """One of two processes is killed; both start anew from the last checkpoint; then SIGTERM."""
    data = made_corpus(tmp_path / "corpus")
    words = ["launch", "-n", "2", "--restarts", "1", "train", "model=tiny", *data]
    words += ["trainer.steps=100000", "trainer.batch_size=4", "trainer.log_every=1"]
    words += ["trainer.checkpoint_every=2", "trainer.evaluate_every=100000"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = subprocess.Popen(
        [sys.executable, "-m", "profforce", *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        first = reach(tmp_path, 4)
        os.kill(newest_child(run.pid), signal.SIGKILL)
        last = reach(tmp_path, first + 6)
        run.send_signal(signal.SIGTERM)
        out, said = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 143, said
    assert out == "" and last > first
    (folder,) = tmp_path.glob("runs/*/*")
    assert f"continue: profforce train --resume {folder}" in said
    assert "Traceback" not in said and "torch/distributed" not in said


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in folder.glob("runs/*/*/checkpoints/step-*"))


def reach(folder: Path, step: int) -> int:
    """Wait for a checkpoint of at least ``step``."""
    deadline = time.monotonic() + 240
    while not (steps(folder) and steps(folder)[-1] >= step):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return steps(folder)[-1]


def newest_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("the system does not tell of children")
    return int(children.read_text().split()[-1])
