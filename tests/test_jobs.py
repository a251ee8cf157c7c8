"""How a group of processes that is started anew finds its run."""

from pathlib import Path

import pytest

from profforce import jobs
from profforce.app import main
from profforce.errors import UserError


@pytest.fixture(autouse=True)
def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a/../job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")


def test_only_a_start_anew_looks_for_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    jobs.begin(folder)
    assert jobs.begun(folder) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert jobs.begun(folder) == folder
    assert jobs.begun(tmp_path / "another") == folder  # a name made of the time
    jobs.end()
    assert jobs.begun(tmp_path / "another") is None
    assert jobs.begun(folder) == folder  # hydra.run.dir


def test_the_run_of_another_job_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    jobs.begin(folder)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "other")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert jobs.begun(folder) is None


def test_the_note_lies_in_the_cache_whatever_the_job_is_called(tmp_path: Path) -> None:
    jobs.begin(tmp_path / "run")
    assert [p.name for p in (tmp_path / "cache/profforce/jobs").iterdir()] == ["a_.._job"]


def test_a_job_without_a_name_is_that_of_its_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert jobs.job().startswith("torchrun-")


def test_who_is_who(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert not jobs.started_by_torchrun() and jobs.rank() == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert jobs.started_by_torchrun() and jobs.rank() == 1


@pytest.mark.parametrize(
    ("error", "code", "waits"),
    [(UserError, 2, []), (jobs.LostError, 1, [jobs.CAUSE_S])],
    ids=["own", "lost"],
)
def test_a_process_that_lost_another_waits_for_its_end_before_its_own(
    error: type[UserError], code: int, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("no use")

    waited: list[float] = []
    monkeypatch.setattr("profforce.bridge.launch", fail)
    monkeypatch.setattr(jobs.time, "sleep", waited.append)
    assert main(["train"]) == code
    assert waited == waits
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # alone there is nothing to wait for
    assert main(["train"]) == code
    assert waited == waits
