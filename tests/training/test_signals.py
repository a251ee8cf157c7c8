"""Ctrl-C as a terminal sends it: to the run and to its data workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_run import made_corpus

from profforce.training.distributed import ALONE, Team, joined
from profforce.training.signals import StopFlag


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no process groups")
def test_ctrl_c_during_data_workers_saves_and_exits_130(tmp_path: Path) -> None:
    data = made_corpus(tmp_path / "corpus")
    words = ["train", "model=tiny", *data, "trainer.steps=100000"]
    words += ["trainer.batch_size=8", "trainer.log_every=1", "method=teacher_forcing"]
    words += ["data.num_workers=1", "trainer.num_threads=1", f"hydra.run.dir={tmp_path / 'run'}"]
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; from profforce.app import main\n"
        "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))\n"
    )
    script = tmp_path / "run_it.py"
    script.write_text(code)
    run = subprocess.Popen(
        [sys.executable, str(script), *words],
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.is_file() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)  # workers of a small corpus are started anew every second or two
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130, said
    assert "stopped by Ctrl-C at step" in said
    assert any((tmp_path / "run/checkpoints").glob("step-*"))


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
def test_the_first_process_started_inside_never_sees_ctrl_c(tmp_path: Path) -> None:
    """In a process of its own, whose first spawn it is: that starts a tracker, which unblocks."""
    code = (
        "import multiprocessing, signal\n"
        "from profforce.training.signals import sigint_blocked\n"
        "def blocked(pipe):\n"
        "    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    ours, theirs = context.Pipe()\n"
        "    with sigint_blocked():\n"
        "        context.Process(target=blocked, args=(theirs,)).start()\n"
        "    assert ours.recv()\n"
        "    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    )
    script = tmp_path / "run_it.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_who_has_lost_the_launcher_saves_and_ends() -> None:
    flag = StopFlag()
    assert flag.none_stops(Team(launcher=os.getppid()), over=False)
    assert not flag.none_stops(Team(launcher=os.getppid() + 1), over=False)
    assert flag.signal == signal.SIGTERM
    assert StopFlag().none_stops(ALONE, over=False)


@pytest.mark.parametrize("launched", [False, True])
def test_the_launcher_is_the_parent_that_torchrun_is(
    monkeypatch: pytest.MonkeyPatch, launched: bool
) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with joined("cpu", 1.0) as team:
        assert team.launcher == (os.getppid() if launched else None)
