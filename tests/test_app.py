"""Faults of the machine, told in one line where a person can mend them."""

import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest

from profforce.app import main
from profforce.commands.shared import print_json


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_corpus_folder_that_cannot_be_used(
    in_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "file").write_text("")
    words = ["data.root=file/x", "data.num_utterances=2"]
    assert main(["data", "prepare", "synthetic", *words]) == 2
    err = capfd.readouterr().err
    assert "cannot be used; got Not a directory" in err and err.count("\n") == 1


def test_a_full_disk_is_one_line_and_a_fault_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(number: int) -> None:
        def prepare(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("profforce.data.prepare.prepare", prepare)

    fail(errno.ENOSPC)
    assert main(["data", "prepare", "synthetic"]) == 2
    err = capfd.readouterr().err
    assert "the corpus cannot be written; got No space left" in err and err.count("\n") == 1
    fail(errno.EIO)
    assert main(["data", "prepare", "synthetic"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_a_sweep_says_which_point_was_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-m", "trainer.lr=-1", "hydra.sweep.dir=s"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: trainer.lr must be > 0, got -1")
    assert last.endswith("in job 0 of the sweep: trainer.lr=-1")


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "ä🦀"), ("cp1252", r"\u00e4")])
def test_json_survives_every_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    print_json({"text": "ä🦀"})
    sys.stdout.flush()
    line = raw.getvalue().decode(encoding)
    assert shown in line and json.loads(line) == {"text": "ä🦀"}
