"""F0 of tones whose frequency is known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from profforce.audio.mel import MelSpectrogram
from profforce.config import MelConfig
from profforce.evaluation.pitch import pitch_error, pitch_of

MEL = MelConfig(
    sample_rate=8000, n_fft=512, hop_length=128, win_length=512, fmax_hz=4000.0, num_mels=20
)


def voice(hertz: float, seconds: float = 0.6) -> Tensor:
    time = torch.arange(round(seconds * MEL.sample_rate)) / MEL.sample_rate
    harmonics = [torch.sin(2 * math.pi * hertz * k * time) / k for k in range(1, 7)]
    return 0.2 * torch.stack(harmonics).sum(0)


def said(audio: Tensor) -> tuple[Tensor, Tensor]:
    return audio, MelSpectrogram(MEL)(audio)


@pytest.mark.parametrize("hertz", [90.0, 150.0, 320.0])
def test_a_tone_has_its_frequency(hertz: float) -> None:
    pitch = pitch_of(voice(hertz), MEL)
    assert np.nanmedian(pitch) == pytest.approx(hertz, rel=0.01)
    assert np.isfinite(pitch).mean() > 0.9


def test_noise_has_none() -> None:
    noise = torch.randn(6000, generator=torch.Generator().manual_seed(0)) * 0.1
    assert np.isfinite(pitch_of(noise, MEL)).mean() < 0.2


@pytest.mark.parametrize("semitones", [0.0, 2.0, -5.0])
def test_the_error_is_the_interval(semitones: float) -> None:
    low = said(voice(200.0))
    error = pitch_error(said(voice(200.0 * 2 ** (semitones / 12), 0.8)), low, MEL)
    assert error.semitones == pytest.approx(abs(semitones), abs=0.15)
    assert error.voicing < 0.1


def test_silence_against_a_voice_is_wrong_voicing_and_no_pitch() -> None:
    error = pitch_error(said(torch.zeros(4800)), said(voice(200.0)), MEL)
    assert math.isnan(error.semitones) and error.voicing > 0.9
