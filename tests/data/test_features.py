import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from profforce.audio.files import read_audio
from profforce.audio.mel import MelSpectrogram
from profforce.config import MelConfig
from profforce.data import features
from profforce.data.features import MelFeatures, MelReader, build_features, definition_key
from profforce.errors import UserError
from tests.data.conftest import write_tone

MEL = MelConfig()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "wavs" / f"u{k}.wav" for k in range(6)]
    for k, path in enumerate(paths):
        write_tone(path, 0.2 + 0.05 * k, 200.0 + 10 * k)
    return paths


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose mel was really computed."""
    names: list[str] = []
    original = MelReader.__call__

    def spy(self: MelReader, path: Path) -> np.ndarray:
        names.append(path.name)
        return original(self, path)

    monkeypatch.setattr(MelReader, "__call__", spy)
    return names


def build(files: list[Path], folder: Path, mel: MelConfig = MEL) -> MelFeatures:
    return build_features(files, mel, trim_db=None, folder=folder)


def test_features_are_the_mels_of_the_files(files: list[Path], tmp_path: Path) -> None:
    found = build(files, tmp_path / "cache")
    for position, path in enumerate(files):
        expected = MelSpectrogram(MEL)(read_audio(path, MEL.sample_rate))
        assert found.num_frames[position] == len(expected)
        torch.testing.assert_close(torch.from_numpy(np.array(found[position])), expected)
    assert isinstance(found[0], np.memmap) and not found[0].flags.writeable


def test_a_second_build_computes_nothing(
    files: list[Path], tmp_path: Path, computed: list[str]
) -> None:
    first = build(files, tmp_path / "cache")
    assert len(computed) == 6
    second = build(files, tmp_path / "cache")
    assert len(computed) == 6
    assert all(np.array_equal(first[k], second[k]) for k in range(6))


def test_a_killed_build_goes_on_where_it_was(
    files: list[Path], tmp_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "SHARD_UTTERANCES", 2)
    cache = tmp_path / "cache"
    complete = build(files, cache)
    shards = sorted(cache.glob("mel-*/shard-*.json"))
    assert len(shards) == 3
    shards[0].unlink()  # killed between the data and its listing
    computed.clear()
    again = build(files, cache)
    assert len(computed) == 2
    assert all(np.array_equal(complete[k], again[k]) for k in range(6))


def test_an_unreadable_file_loses_nothing_done_before(
    files: list[Path], tmp_path: Path, computed: list[str]
) -> None:
    files[4].write_bytes(b"no audio at all")
    with pytest.raises(UserError, match=r"u4\.wav"):
        build(files, tmp_path / "cache")
    write_tone(files[4], 0.3, 777.0)
    computed.clear()
    build(files, tmp_path / "cache")
    assert computed == ["u4.wav", "u5.wav"]


def test_changed_audio_is_noticed_also_at_the_same_length(
    files: list[Path], tmp_path: Path, computed: list[str]
) -> None:
    before = np.array(build(files, tmp_path / "cache")[2])
    size = files[2].stat().st_size
    write_tone(files[2], 0.3, 3000.0)
    os.utime(files[2], ns=(0, 1))
    assert files[2].stat().st_size == size
    computed.clear()
    after = build(files, tmp_path / "cache")[2]
    assert computed == ["u2.wav"] and not np.array_equal(before, after)


def test_a_touched_file_is_not_computed_again(
    files: list[Path], tmp_path: Path, computed: list[str]
) -> None:
    build(files, tmp_path / "cache")
    os.utime(files[0], ns=(0, 1))
    computed.clear()
    build(files, tmp_path / "cache")
    assert computed == []


@pytest.mark.parametrize("victim", ["files.json", "shard-*.json", "shard-*.npy"])
def test_a_damaged_cache_is_rebuilt_and_said(
    files: list[Path], tmp_path: Path, victim: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = build(files, tmp_path / "cache")
    expected = [np.array(whole[k]) for k in range(6)]
    (path,) = (tmp_path / "cache").glob(f"mel-*/{victim}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with caplog.at_level(logging.WARNING):
        again = build(files, tmp_path / "cache")
    assert f"{path.name} is damaged" in caplog.text
    assert all(np.array_equal(expected[k], again[k]) for k in range(6))


def test_two_builders_at_once_agree(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    original = MelReader.__call__
    other: list[MelFeatures] = []

    def meanwhile(self: MelReader, path: Path) -> np.ndarray:
        if path == files[3] and not other:
            monkeypatch.setattr(MelReader, "__call__", original)
            other.append(build(files, cache))
        return original(self, path)

    monkeypatch.setattr(MelReader, "__call__", meanwhile)
    mine = build(files, cache)
    assert all(np.array_equal(mine[k], other[0][k]) for k in range(6))
    assert not list(cache.glob("mel-*/.*.part"))


def test_every_field_of_the_definition_changes_the_folder() -> None:
    others = [
        MelConfig(sample_rate=24000),
        MelConfig(n_fft=2048),
        MelConfig(hop_length=128),
        MelConfig(win_length=800),
        MelConfig(num_mels=40),
        MelConfig(fmin_hz=20.0),
        MelConfig(fmax_hz=7000.0),
        MelConfig(log_floor=1e-4),
    ]
    keys = {definition_key(mel, 40.0) for mel in [MEL, *others]}
    keys |= {definition_key(MEL, None), definition_key(MEL, 30.0)}
    assert len(keys) == len(others) + 3


def test_features_survive_pickling(files: list[Path], tmp_path: Path) -> None:
    found = build(files, tmp_path / "cache")
    expected = np.array(found[1])
    assert len(pickle.dumps(found)) < 10_000
    assert np.array_equal(pickle.loads(pickle.dumps(found))[1], expected)


def test_processes_give_the_same(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = build(files, tmp_path / "a")
    monkeypatch.setattr(features, "PARALLEL_FROM", 1)
    monkeypatch.setattr(features, "num_cpus", lambda: 2)
    seen: list[tuple[int, int]] = []
    shared = build_features(
        files,
        MEL,
        trim_db=None,
        folder=tmp_path / "b",
        progress=lambda _, done, total: seen.append((done, total)),
    )
    assert seen == [(k, 6) for k in range(1, 7)]
    for k in range(6):
        np.testing.assert_allclose(alone[k], shared[k], atol=1e-5)


def test_a_cache_that_cannot_be_written_names_the_setting(
    files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the feature cache .*set data\.cache"):
        build(files, tmp_path / "file" / "features")
