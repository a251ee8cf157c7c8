"""What the bridge to Hydra accepts and refuses, and that a mistake changes nothing on disk."""

import io
import os
import socket
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce import runs
from profforce.bridge import Launch, compose, launch, quoted
from profforce.config import SampleConfig, TextFrontEnd, TrainConfig
from profforce.errors import UserError

INSTALLED = {package.name for package in distributions()}


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def never(cfg: TrainConfig, run_dir: Path) -> None:
    raise AssertionError("the task must not run")


def nothing(cfg: TrainConfig, run_dir: Path) -> None:
    """A task that has nothing to do."""


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0$"), min_size=1))
def test_any_path_survives_the_override_grammar(path: str) -> None:
    override = OverridesParser.create().parse_override(f"key={quoted(path)}")
    assert override.value() == path


def test_composing_gives_the_dataclasses_with_their_enums() -> None:
    cfg = compose(
        TrainConfig,
        "train",
        ["text.front_end=ipa", "+experiment=demo", "data=custom", "data.root=x"],
    )
    assert isinstance(cfg, TrainConfig)
    assert cfg.text.front_end is TextFrontEnd.ipa
    assert cfg.data.root == "x"
    assert compose(SampleConfig, "sample", ["seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hydra.run.dir=x", "no run folder and no sweep"),
        ("-m", "expected KEY=VALUE"),
        ("+trainer.lr=1", "Leave out the '+'"),
        ("+trainer.stps=1", "did you mean 'trainer.steps'"),
        ("text.front_end=ip", "expected one of [graphemes, ipa, espeak]"),
    ],
)
def test_what_composing_refuses(word: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(TrainConfig, "train", [word])
    assert said in str(caught.value)


def test_own_groups_join_by_config_dir(in_tmp: Path) -> None:
    (in_tmp / "a b/model").mkdir(parents=True)
    (in_tmp / "a b/model/mine.yaml").write_text("width: 48\n")
    cfg = compose(TrainConfig, "train", ["model=mine"], config_dir=Path("a b"))
    assert cfg.model.width == 48
    seen: list[int] = []
    how = Launch(config_dir=Path("a b"))
    launch("train", lambda cfg, run_dir: seen.append(cfg.model.width), ["model=mine"], how)
    assert seen == [48]


def test_a_used_folder_keeps_its_settings(in_tmp: Path) -> None:
    launch("train", nothing, ["seed=5", "hydra.run.dir=r"], Launch())
    (in_tmp / "r/checkpoints/step-1").mkdir(parents=True)
    before = (in_tmp / "r/.hydra/config.yaml").read_bytes()
    refused: list[tuple[list[str], Launch]] = [
        (["seed=6", "hydra.run.dir=r"], Launch()),
        (["trainer.lr=-1"], Launch(resume=Path("r"))),
        (["trainer.stps=1"], Launch(resume=Path("r"))),
        (["model=tiny"], Launch(resume=Path("r"))),
        (["hydra.run.dir=s"], Launch(resume=Path("r"))),
        ([], Launch(resume=Path("r"), multirun=True)),
        ([], Launch(resume=Path("r"), config_dir=Path())),
    ]
    for words, how in refused:
        with pytest.raises(UserError):
            launch("train", never, words, how)
    assert (in_tmp / "r/.hydra/config.yaml").read_bytes() == before
    assert [path.name for path in in_tmp.iterdir()] == ["r"]


@pytest.mark.parametrize("resume", [False, True], ids=["begun", "resumed"])
def test_a_folder_that_another_trains_in_keeps_its_settings(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    monkeypatch.setattr(runs, "PATIENCE_S", 0.1)
    run = in_tmp / "mine"
    words = [f"hydra.run.dir={run}"]
    launch("train", nothing, words, Launch())
    before = {path: path.read_bytes() for path in (run / ".hydra").iterdir()}

    how = Launch(resume=run) if resume else Launch()
    given = ["seed=5"] if resume else [*words, "seed=5"]
    with runs.held(run):
        monkeypatch.setattr(runs, "_MINE", set())  # as another process
        with pytest.raises(UserError, match="another training writes into this folder"):
            launch("train", never, given, how)
    assert {path: path.read_bytes() for path in (run / ".hydra").iterdir()} == before


def test_a_folder_is_another_ones_until_the_task_is_done(in_tmp: Path) -> None:
    """Its name holds the time, which is read once."""
    seen: list[Path] = []

    def task(cfg: TrainConfig, folder: Path) -> None:
        assert (folder / runs.LOCK).read_text().startswith(f"{os.getpid()} of ")
        seen.append(folder)

    for _ in range(2):
        launch("train", task, ["hydra.run.dir=r/${now:%f}"], Launch())
    assert sorted(path.name for path in (in_tmp / "r").iterdir()) == sorted(p.name for p in seen)


@pytest.mark.parametrize("word", ["freerun.splice=0.5", "+freerun.splice=0.5"])
def test_a_run_from_before_a_setting_was_there_can_be_resumed_with_it(
    in_tmp: Path, word: str
) -> None:
    launch("train", nothing, ["hydra.run.dir=r"], Launch())
    file = in_tmp / "r/.hydra/config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith("  splice:")]
    assert len(older) == len(lines) - 1
    file.write_text("".join(older))
    seen: list[float] = []

    def task(cfg: TrainConfig, run_dir: Path) -> None:
        seen.append(cfg.freerun.splice)

    launch("train", task, [word, "seed=3"], Launch(resume=Path("r")))
    assert seen == [0.5]
    launch("train", task, ["freerun.splice=0.25"], Launch(resume=Path("r")))  # it is known now
    assert seen == [0.5, 0.25]
    with pytest.raises(UserError, match=r"'freerun.splise'; did you mean 'freerun.splice'\?"):
        launch("train", task, ["freerun.splise=1"], Launch(resume=Path("r")))


def test_a_resumed_run_that_refuses_new_settings_keeps_its_own(in_tmp: Path) -> None:
    launch("train", nothing, ["seed=5", "hydra.run.dir=r"], Launch())
    before = {path.name: path.read_bytes() for path in (in_tmp / "r/.hydra").iterdir()}

    def refuse(cfg: TrainConfig, run_dir: Path) -> None:
        raise UserError("the checkpoint's settings differ")

    with pytest.raises(UserError, match="differ"):
        launch("train", refuse, ["model.width=64"], Launch(resume=Path("r")))
    assert {path.name: path.read_bytes() for path in (in_tmp / "r/.hydra").iterdir()} == before


def test_a_fault_of_a_sweep_stays_what_it_is_and_names_its_job() -> None:
    def task(cfg: TrainConfig, run_dir: Path) -> None:
        raise FileNotFoundError(2, "No such file", "lost.wav")

    with pytest.raises(FileNotFoundError) as caught:
        launch("train", task, ["seed=7", "hydra.sweep.dir=s"], Launch(multirun=True))
    assert caught.value.__notes__ == ["in job 0 of the sweep: seed=7"]


def test_a_reader_of_the_settings_that_leaves_is_no_fault_of_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        launch("train", never, [], Launch(show="job"))


@pytest.mark.skipif("hydra-joblib-launcher" in INSTALLED, reason="the extra joblib is installed")
def test_a_launcher_that_is_not_installed_names_its_extra() -> None:
    with pytest.raises(UserError, match=r"has no 'joblib'; pip install 'profforce\[joblib\]'"):
        launch("train", never, ["hydra/launcher=joblib"], Launch(multirun=True))


def test_a_run_folder_that_cannot_be_made_is_one_line(in_tmp: Path) -> None:
    (in_tmp / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the run folder"):
        launch("train", never, ["hydra.run.dir=file/r"], Launch())


def test_one_bad_point_fails_the_sweep_after_the_others_ran() -> None:
    rates: list[float] = []

    def task(cfg: TrainConfig, run_dir: Path) -> None:
        rates.append(cfg.trainer.lr)

    with pytest.raises(UserError, match=r"trainer\.lr must be > 0"):
        launch("train", task, ["trainer.lr=0,1", "hydra.sweep.dir=s"], Launch(multirun=True))
    assert rates == [1.0]


def test_an_exit_for_a_signal_passes_through() -> None:
    def task(cfg: TrainConfig, run_dir: Path) -> None:
        raise SystemExit(143)

    with pytest.raises(SystemExit) as caught:
        launch("train", task, [], Launch())
    assert caught.value.code == 143


def test_a_sweep_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="--multirun: a sweep starts its jobs itself"):
        launch("train", never, [], Launch(multirun=True), together=never)


def test_of_several_processes_one_shows_the_settings(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    shown = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        launch("train", never, [], Launch(show="job"), together=never)
        shown.append(capfd.readouterr().out)
    assert "batch_size" in shown[0] and shown[1] == ""


@pytest.mark.parametrize("value", ["''", "'  '"])
def test_a_run_without_a_folder_is_refused(in_tmp: Path, value: str) -> None:
    with pytest.raises(UserError, match=r"hydra\.run\.dir: a run needs a folder; got"):
        launch("train", never, [f"hydra.run.dir={value}"], Launch())
    assert list(in_tmp.iterdir()) == []


def test_a_checkpoint_whose_replacement_was_cut_off_is_a_run(in_tmp: Path) -> None:
    (in_tmp / "r/checkpoints/.step-4.replaced").mkdir(parents=True)
    with pytest.raises(UserError, match="holds a run already"):
        launch("train", never, ["hydra.run.dir=r"], Launch())


def test_the_processes_of_torchrun_share_settings_and_folder(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of one, which goes the same way; a start anew goes on in the folder of the first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_tmp / "cache"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-7")
    seen = []

    def member(cfg: TrainConfig, run_dir: Path, team: Any, resume: bool) -> None:
        seen.append((cfg.trainer.steps, run_dir, (team.rank, team.size), resume))
        (run_dir / "checkpoints/step-7").mkdir(parents=True, exist_ok=True)
        raise UserError("ended early")

    for restarts, words in (("0", ["model=tiny", "trainer.steps=7"]), ("1", ["trainer.steps=9"])):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        with pytest.raises(UserError, match="ended early"):
            launch("train", never, words, Launch(), together=member)
        torch.distributed.destroy_process_group()
    (first, folder, place, resumed), (second, again, _, resumed_then) = seen
    assert folder.is_relative_to(in_tmp / "runs") and folder == again
    assert (first, second, place) == (7, 7, (0, 1))  # the settings of the run, not the words
    assert (resumed, resumed_then) == (False, True)


def test_logs_go_to_the_run_folder_and_results_to_the_caller(in_tmp: Path) -> None:
    def task(cfg: TrainConfig, run_dir: Path) -> Any:
        import logging

        logging.getLogger("profforce.test").info("hello")
        return run_dir

    assert launch("train", task, ["hydra.run.dir=r"], Launch()) == in_tmp / "r"
    assert "hello" in (in_tmp / "r/train.log").read_text()
    launch("train", task, [], Launch(resume=Path("r")))
    assert (in_tmp / "r/train.log").read_text().count("hello") == 2


def test_no_experiment_may_be_asked_for_and_other_groups_need_a_choice() -> None:
    plain = compose(TrainConfig, "train", [])
    assert compose(TrainConfig, "train", ["experiment=null"]) == plain
    assert compose(TrainConfig, "train", ["experiment="]) == plain
    with pytest.raises(UserError, match="'model=null': a model has to be chosen; expected linear"):
        compose(TrainConfig, "train", ["model=null"])
