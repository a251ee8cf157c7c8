"""Several processes that train as one: what they tell each other, and that they equal one."""

import json
import logging
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import crash_test
import pytest
import torch
from safetensors.torch import load_file

from profforce.config import DataConfig, TrainConfig
from profforce.errors import UserError
from profforce.training.distributed import ALONE, Team, joined, local_device
from profforce.training.run import train

MEMBER = Path(__file__).with_name("member.py")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="no gloo"
)


@pytest.fixture(scope="module")
def folder(data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a corpus."""
    folder = tmp_path_factory.mktemp("team")
    shutil.copytree(data.root, folder / "corpus")
    return folder


@pytest.fixture(scope="module")
def notes(folder: Path) -> list[dict[str, Any]]:
    """What two processes found, by rank."""
    port = str(crash_test.free_port())
    members = [
        subprocess.Popen(
            [sys.executable, str(MEMBER), str(rank), port, str(folder)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [member.communicate(timeout=300)[1] for member in members]
    assert [member.returncode for member in members] == [0, 0], errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_what_is_summed_is_the_same_to_the_bit_everywhere(notes: list[dict[str, Any]]) -> None:
    first, second = (note["talk"] for note in notes)
    for name in ("weights", "summed_gradient", "bias", "summed", "gathered", "largest"):
        assert first[name] == second[name], name
    total = torch.tensor(first["own_gradient"]) + torch.tensor(second["own_gradient"])
    assert torch.equal(torch.tensor(first["summed_gradient"]), total)
    assert first["bias"] == [3.0] * 7 and first["summed"] == [2.0, 1.0]
    assert first["gathered"] == ["of 0", "of 1"] and first["largest"] == 2.5


def test_the_first_one_acts_for_all_and_fails_for_all(notes: list[dict[str, Any]]) -> None:
    first, second = (note["talk"] for note in notes)
    assert first["from_first"] == second["from_first"] == "word of 0"
    assert first["failed"] == "ValueError: no room"
    assert second["failed"].startswith("LostError: process 0 failed at trying; got ValueError")
    assert first["equal"] == "nothing"
    for note in (first, second):
        assert note["unequal"].startswith(
            "LostError: the processes disagree about the version; got 0 in process 0, 1 in process"
        )


def test_a_wait_in_vain_ends_in_a_line_that_names_the_reason(notes: list[dict[str, Any]]) -> None:
    line = notes[0]["vain"]["lost"]
    assert line.startswith("LostError: process 0 of 2 waited in vain for an answer of the others")
    assert "within 0.15 minutes" in line and "trainer.timeout_minutes" in line and "\n" not in line


def test_a_step_that_is_no_number_in_one_process_is_skipped_in_all(
    notes: list[dict[str, Any]], folder: Path
) -> None:
    rows = [row for row in crash_test.logged(folder / "skipped") if "loss/skipped" in row]
    assert [row["loss/skipped"] for row in rows] == [0, 0, 1, 1]
    assert rows[3]["loss/total"] == rows[3]["loss/total"]
    (line,) = [s for s in (folder / "0.log").read_text().splitlines() if "skipped" in s]
    named = line.partition("batch: ")[2].split(", ")
    assert 5 < len(named) <= 10 and len(set(named)) == len(named)  # the utterances of both


def test_processes_that_see_unlike_corpora_do_not_begin(
    notes: list[dict[str, Any]], folder: Path
) -> None:
    for note in notes:
        said = note["unlike"]["said"]
        assert said.startswith("LostError: the processes disagree about the corpus; got ")
        assert "utterances (" in said and "data.root" in said and "\n" not in said
    assert not (folder / "unlike").exists()


def test_a_signal_to_one_process_saves_once_and_ends_all(
    notes: list[dict[str, Any]], folder: Path
) -> None:
    assert [note["stop"]["ended"] for note in notes] == ["SystemExit: 143"] * 2
    names = {path.name for path in (folder / "stopped/checkpoints").iterdir()}
    assert names == {"step-2", "step-3"}


def losses_of(run: Path) -> list[dict[str, float]]:
    parts = ("loss/", "gan/", "gap/", "imitation/")
    return [
        {name: value for name, value in row.items() if name.startswith(parts)}
        for row in crash_test.logged(run)
    ]


def require_equal(one: Path, two: Path) -> None:
    first, second = losses_of(one), losses_of(two)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert b == pytest.approx(a, rel=2e-5, abs=1e-6)
    weights = [load_file(run / "checkpoints/step-10/model.safetensors") for run in (one, two)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.slow
def test_two_processes_equal_one_of_the_same_batches_and_either_goes_on_as_the_other(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With dropout, forced steps, an expert, unlike lengths; to the noise of float32."""
    config: TrainConfig = crash_test.settings_of(folder / "corpus", 10)
    config = replace(
        config,
        model=replace(config.model, dropout=0.1),
        method=replace(config.method, teacher_weight=0.02, imitation_weight=0.5),
        trainer=replace(config.trainer, keep_last=9),
    )
    twice = replace(config, trainer=replace(config.trainer, accumulate=2))
    one, two = folder / "one", folder / "two"
    train(twice, one)
    crash_test.finish(crash_test.born(config, two, processes=2), two)
    require_equal(one, two)
    for step in (8, 10):
        shutil.rmtree(two / f"checkpoints/step-{step}")
    with caplog.at_level(logging.WARNING):
        train(twice, two, resume=True)
    assert any("it changed processes 2 -> 1" in message for message in caplog.messages)
    require_equal(one, two)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills processes of a fork server")
def test_two_processes_killed_together_or_alone_equal_the_uninterrupted_ones(
    tmp_path: Path,
) -> None:
    out = crash_test.crash_test(tmp_path, 4, seed=5, steps=10, processes=2)
    assert out.kills == 4 and 0 < out.of_one < 4
    assert out.differences == []


def test_alone_nothing_is_asked_of_others() -> None:
    assert ALONE.is_first
    assert ALONE.from_first("a word", lambda: 3) == 3
    assert ALONE.gathered("numbers", 4) == [4]
    values = torch.ones(2)
    assert ALONE.summed(values, "numbers") is values
    ALONE.require_equal("anything", object())
    assert not Team(rank=1, size=2).is_first


def test_processes_without_a_group_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    match = "torchrun: the processes cannot find each other"
    with pytest.raises(UserError, match=match) as err, joined("cpu", 1.0):
        pass
    assert "\n" not in str(err.value)


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device("auto") == local_device("cuda") == "cuda:1"
    assert local_device("cpu") == "cpu"
    with pytest.raises(UserError, match="one GPU for several processes; got cuda:0"):
        local_device("cuda:0")
    with pytest.raises(UserError, match="several processes need CPUs or CUDA; got mps"):
        local_device("mps")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UserError, match="3 processes on a machine with 2"):
        local_device("cuda")
