"""Files that the system refuses to hold: its own words reach the user, whichever library wrote."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from profforce.audio.files import write_audio
from profforce.config import AudioSubtype
from profforce.data.shards import Shards
from profforce.disk import told_by_system
from profforce.models.checkpoint import SaveError, save_checkpoint
from profforce.sampling.output import write_array, write_output

resource: Any = pytest.importorskip("resource")
MOST = 2**16
"""Bytes of a file, by the system's limit; as many as of a whole disk are left to the tests."""
LONG = torch.zeros(2 * MOST)


@contextmanager
def small_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


SAVE: dict[str, Callable[[Path], object]] = {
    "weights": lambda at: save_checkpoint(at, 1, {"w": LONG}, {}, {}),
    "state": lambda at: save_checkpoint(at, 1, {}, {"pool": LONG}, {}),
    "features": lambda at: Shards(at, 2).add({"ab": np.zeros((MOST, 2), np.float32)}),
    "mel": lambda at: write_array(at / "x.npy", LONG.numpy()),
    "wav": lambda at: write_output(at / "x.wav", LONG, 22050, AudioSubtype.FLOAT),
    "flac": lambda at: write_output(
        at / "x.flac", torch.rand(MOST, generator=torch.manual_seed(0)), 22050, AudioSubtype.PCM_24
    ),
    "demo_wav": lambda at: write_audio(at / "x.wav", LONG, 22050),
}


@pytest.mark.parametrize("save", SAVE.values(), ids=SAVE)
def test_what_does_not_fit_is_told_in_the_words_of_the_system_and_leaves_nothing(
    save: Callable[[Path], object], tmp_path: Path
) -> None:
    with small_files(), pytest.raises(Exception, match="File too large") as caught:
        save(tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    save(tmp_path)
    assert len(list(tmp_path.iterdir())) in {1, 2}


def test_a_checkpoint_that_does_not_fit_says_what_to_do(tmp_path: Path) -> None:
    with small_files(), pytest.raises(SaveError) as caught:
        save_checkpoint(tmp_path, 3, {}, {"pool": LONG}, {})
    assert "step-3: checkpoint cannot be written; got File too large; make room" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EACCES, "no"), KeyError("a fault"), RuntimeError("another reason")],
    ids=["system", "fault", "library"],
)
def test_an_error_of_another_reason_stays_as_it_is(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as caught, told_by_system(tmp_path / "file"):
        raise error
    assert caught.value is error


def test_a_folder_that_is_gone_is_told_by_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), told_by_system(tmp_path / "no/file"):
        raise RuntimeError("unexpected pos 640 vs 598")
