"""Audio files: format, rate, loudness, and the same bytes for the same audio."""

import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from profforce.audio.loudness import loudness_lufs
from profforce.config import AudioFormat, AudioSubtype, SampleConfig
from profforce.errors import UserError
from profforce.sampling.output import mastered, write_array, write_output

NOISE = torch.randn(16000, generator=torch.Generator().manual_seed(0)) * 0.1


@pytest.mark.parametrize(
    ("suffix", "subtype", "error"),
    [
        ("wav", AudioSubtype.PCM_16, 2**-15),
        ("wav", AudioSubtype.PCM_24, 2**-23),
        ("wav", AudioSubtype.FLOAT, 0.0),
        ("flac", AudioSubtype.PCM_16, 2**-15),
        ("flac", AudioSubtype.PCM_24, 2**-23),
    ],
)
def test_what_is_written_is_read_back(
    tmp_path: Path, suffix: str, subtype: AudioSubtype, error: float
) -> None:
    path = tmp_path / f"a.{suffix}"
    write_output(path, NOISE, 8000, subtype)
    info = soundfile.info(path)
    assert (info.format, info.subtype) == (suffix.upper(), str(subtype))
    assert (info.samplerate, info.channels) == (8000, 1)
    samples, _ = soundfile.read(path, dtype="float32")
    assert (torch.from_numpy(samples) - NOISE).abs().max() <= error
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("subtype", list(AudioSubtype), ids=str)
def test_the_same_audio_gives_the_same_bytes_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtype: AudioSubtype
) -> None:
    write_output(tmp_path / "a.wav", NOISE, 8000, subtype)
    time.sleep(1.1)  # a float wav holds the second it was written in
    write_output(tmp_path / "b.wav", NOISE, 8000, subtype)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_integers_are_clipped_and_floats_are_not(tmp_path: Path) -> None:
    for subtype, peak in ((AudioSubtype.PCM_16, 1.0), (AudioSubtype.FLOAT, 1.5)):
        write_output(tmp_path / "a.wav", torch.full((100,), 1.5), 8000, subtype)
        samples, _ = soundfile.read(tmp_path / "a.wav")
        assert samples.max() == pytest.approx(peak, abs=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_one_line(tmp_path: Path, value: float) -> None:
    with pytest.raises(UserError, match=r"a\.wav: the model made values that are not finite"):
        write_output(tmp_path / "a.wav", torch.tensor([0.0, value]), 8000, AudioSubtype.PCM_16)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write audio"):
        write_output(tmp_path / "no" / "a.wav", NOISE, 8000, AudioSubtype.PCM_16)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX's")
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(
            UserError, match=r"a\.wav: cannot write audio; got File too large; make"
        ):
            write_output(tmp_path / "a.wav", NOISE, 8000, AudioSubtype.PCM_16)
        with pytest.raises(UserError, match=r"a\.npy: cannot write the mel; got .*; make room"):
            write_array(tmp_path / "a.npy", np.zeros((100, 80), dtype=np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(tmp_path.iterdir())


def test_rate_and_loudness() -> None:
    audio, rate, warnings = mastered(NOISE, 8000, SampleConfig())
    assert torch.equal(audio, NOISE) and (rate, warnings) == (8000, [])
    audio, rate, warnings = mastered(
        NOISE, 8000, SampleConfig(sample_rate=24000, loudness_lufs=-30.0)
    )
    assert (len(audio), rate, warnings) == (48000, 24000, [])
    assert loudness_lufs(audio, rate) == pytest.approx(-30.0, abs=0.05)


@pytest.mark.parametrize(
    ("audio", "said"),
    [(torch.zeros(8000), "too quiet to have a loudness"), (NOISE, "peaks allow -1")],
    ids=["silence", "peaks"],
)
def test_a_loudness_that_is_out_of_reach_is_said(audio: Tensor, said: str) -> None:
    assert mastered(audio, 8000, SampleConfig(loudness_lufs=-1.0))[2][0].startswith(said)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="PCM_16 or PCM_24 for format=flac, got FLOAT"):
        SampleConfig(format=AudioFormat.flac, subtype=AudioSubtype.FLOAT)
    for name, value in (
        ("sample_rate", 100),
        ("loudness_lufs", 3.0),
        ("pause_s", -1.0),
        ("paragraph_pause_s", float("nan")),
        ("max_symbols_per_piece", 3),
        ("max_symbols_per_piece", 10**20),  # every piece is padded to it
        ("attention_window", 10**20),
        ("griffin_lim_iterations", 10**20),
    ):
        with pytest.raises(ValueError, match=f"sample.{name} must be"):
            SampleConfig(**{name: value})  # type: ignore[arg-type]
