import librosa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.audio.mel import MelSpectrogram, padding, reflect_pad, require_mel
from profforce.config import MelConfig
from profforce.errors import UserError

CONFIGS = [
    MelConfig(),
    MelConfig(sample_rate=16000, n_fft=512, hop_length=200, win_length=400, num_mels=40),
    MelConfig(n_fft=1024, hop_length=255, win_length=800, fmin_hz=50, fmax_hz=11025),
]


def obvious_mel(audio: np.ndarray, config: MelConfig) -> np.ndarray:
    """HiFi-GAN's definition, frame by frame."""
    total = config.n_fft - config.hop_length
    padded = np.pad(audio, (total // 2, total - total // 2), mode="reflect")
    window = librosa.util.pad_center(
        librosa.filters.get_window("hann", config.win_length), size=config.n_fft
    )
    filters = librosa.filters.mel(
        sr=config.sample_rate,
        n_fft=config.n_fft,
        n_mels=config.num_mels,
        fmin=config.fmin_hz,
        fmax=config.fmax_hz,
    )
    rows = []
    for t in range(len(audio) // config.hop_length):
        frame = padded[t * config.hop_length : t * config.hop_length + config.n_fft] * window
        amplitude = np.sqrt(np.abs(np.fft.rfft(frame)) ** 2 + 1e-9)
        rows.append(np.log(np.maximum(filters @ amplitude, config.log_floor)))
    return np.array(rows)


@pytest.mark.parametrize("config", CONFIGS, ids=["universal", "16k", "odd-hop"])
@pytest.mark.parametrize("num_samples", [300, 4096, 9999])
def test_equals_hifigans_definition(config: MelConfig, num_samples: int) -> None:
    audio = 0.3 * np.random.default_rng(0).standard_normal(num_samples)
    mel = MelSpectrogram(config)(torch.from_numpy(audio))
    np.testing.assert_allclose(mel.numpy(), obvious_mel(audio, config), atol=1e-6)


def test_silence_lies_near_the_floor_and_stays_finite() -> None:
    audio = torch.zeros(2560, requires_grad=True)
    mel = MelSpectrogram(MelConfig())(audio)
    mel.sum().backward()
    assert mel.max() < np.log(1e-4)
    assert audio.grad is not None and torch.isfinite(audio.grad).all()


@given(st.integers(0, 3000))
@settings(max_examples=25, deadline=None)
def test_frames_are_whole_hops(num_samples: int) -> None:
    mel = MelSpectrogram(MelConfig())(torch.zeros(3, 2, num_samples))
    assert mel.shape == (3, 2, num_samples // 256, 80)


def test_batch_rows_do_not_see_each_other() -> None:
    audio = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0))
    mel = MelSpectrogram(MelConfig())
    for row, together in zip(audio, mel(audio), strict=True):
        torch.testing.assert_close(mel(row), together, atol=1e-5, rtol=0)


@given(st.integers(1, 50), st.integers(0, 90), st.integers(0, 90))
@settings(max_examples=50, deadline=None)
def test_reflection_of_any_length_equals_numpys(n: int, left: int, right: int) -> None:
    audio = torch.arange(float(n))
    expected = np.pad(audio.numpy(), (left, right), mode="reflect")
    np.testing.assert_array_equal(reflect_pad(audio[None], left, right)[0].numpy(), expected)


def test_padding_is_what_framing_needs() -> None:
    assert padding(MelConfig()) == (384, 384)
    assert sum(padding(MelConfig(hop_length=255))) == 1024 - 255


def test_buffers_stay_out_of_checkpoints() -> None:
    assert not MelSpectrogram(MelConfig()).state_dict()


def test_a_mel_that_is_not_finite_is_refused() -> None:
    mel = torch.zeros(3, 80)
    require_mel(mel, MelConfig())
    mel[1, 2] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        require_mel(mel, MelConfig())
    with pytest.raises(ValueError, match=r"\[T, 80\], got \[3, 79\]"):
        require_mel(mel[:, 1:], MelConfig())
