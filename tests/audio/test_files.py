from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from profforce.audio.files import read_audio, resample, trim_silence, write_audio
from profforce.errors import UserError


def tone(seconds: float = 0.5, rate: int = 22050, hz: float = 440.0) -> torch.Tensor:
    return 0.5 * torch.sin(2 * torch.pi * hz * torch.arange(int(seconds * rate)) / rate)


def test_round_trip_keeps_16_bits(tmp_path: Path) -> None:
    audio = tone()
    write_audio(tmp_path / "new" / "a.wav", audio, 22050)
    torch.testing.assert_close(
        read_audio(tmp_path / "new" / "a.wav", 22050), audio, atol=1 / 32000, rtol=0
    )
    assert soundfile.info(tmp_path / "new" / "a.wav").subtype == "PCM_16"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.wav"]


def test_beyond_full_scale_clips_instead_of_wrapping(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", torch.tensor([2.0, -2.0]), 22050)
    back = read_audio(tmp_path / "a.wav", 22050)
    assert back[0] > 0.99 and back[1] < -0.99


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT"])
def test_stereo_of_any_width_becomes_mono_at_the_wanted_rate(tmp_path: Path, subtype: str) -> None:
    left = tone(rate=48000).numpy()
    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack([left, np.zeros_like(left)], 1), 48000, subtype=subtype)
    audio = read_audio(path, 22050)
    assert audio.dtype == torch.float32 and audio.shape == (11025,)
    middle = slice(1000, -1000)
    torch.testing.assert_close(audio[middle], 0.5 * tone()[middle], atol=2e-3, rtol=0)


def test_resampling_leaves_no_alias() -> None:
    high = tone(rate=48000, hz=15000)
    assert resample(high, 48000, 22050)[500:-500].abs().max() < 1e-3
    assert resample(high, 48000, 48000) is high


def broken(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_each_bad_file_is_named(tmp_path: Path) -> None:
    write_audio(tmp_path / "ok.wav", tone(), 22050)
    whole = (tmp_path / "ok.wav").read_bytes()
    nan = np.array([0.0, np.nan, 0.1], np.float32)
    soundfile.write(tmp_path / "nan.wav", nan, 22050, subtype="FLOAT")
    soundfile.write(tmp_path / "header.wav", np.zeros(0), 22050)
    assert (tmp_path / "header.wav").stat().st_size == 44
    cases = {
        tmp_path / "missing.wav": "no such audio file",
        broken(tmp_path / "empty.wav", b""): "audio file is empty; got 0 bytes",
        broken(tmp_path / "text.wav", b"this is no audio at all" * 9): "cannot read audio",
        broken(tmp_path / "cut.wav", whole[:20]): "cannot read audio",
        tmp_path / "header.wav": "audio file is empty",
        tmp_path / "nan.wav": "not finite",
        tmp_path: "no such audio file",
    }
    for path, reason in cases.items():
        with pytest.raises(UserError, match=reason) as caught:
            read_audio(path, 22050)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_failed_write_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken.wav").mkdir()
    with pytest.raises(UserError, match=r"taken\.wav"):
        write_audio(tmp_path / "taken.wav", tone(), 22050)
    assert [p.name for p in tmp_path.iterdir()] == ["taken.wav"]
    with pytest.raises(ValueError, match="shape"):
        write_audio(tmp_path / "b.wav", tone()[None], 22050)


def test_trimming_cuts_the_silent_ends_alone() -> None:
    silence, gap = torch.zeros(8000), torch.zeros(4000)
    noisy = 1e-4 * torch.randn(8000, generator=torch.Generator().manual_seed(0))
    audio = torch.cat([silence, tone(), gap, tone(), noisy])
    trimmed = trim_silence(audio, 22050, 40.0)
    assert 0 <= trimmed.numel() - (2 * 11025 + 4000) < 0.1 * 22050
    assert trim_silence(audio, 22050, 100.0).numel() > trimmed.numel() + 7000
    assert trim_silence(torch.zeros(0), 22050, 40.0).numel() == 0
