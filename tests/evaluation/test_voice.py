"""The speaker encoder: its windows, its mel, and whether it tells people apart."""

from pathlib import Path

import librosa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.audio.files import resample, write_audio
from profforce.errors import UserError
from profforce.evaluation.judging import JUDGE_HZ, Take
from profforce.evaluation.likeness import Likeness
from profforce.evaluation.material import Recording
from profforce.evaluation.voice import (
    COVERED,
    HOP,
    N_FFT,
    NUM_MELS,
    STEP,
    WINDOW,
    VoiceEncoder,
    window_starts,
    without_pauses,
)


def noise(seconds: float, level: float = 0.1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return level * torch.randn(round(seconds * JUDGE_HZ), generator=generator)


@pytest.fixture(scope="module")
def untrained() -> VoiceEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VoiceEncoder().eval()


@given(num_samples=st.integers(1, 20 * JUDGE_HZ))
def test_windows_cover_the_sound_and_little_else(num_samples: int) -> None:
    starts = window_starts(num_samples)
    assert starts == [k * STEP for k in range(len(starts))]
    frames = num_samples / HOP
    assert len(starts) == 1 or frames - starts[-1] >= COVERED * WINDOW
    assert frames - (starts[-1] + WINDOW) <= max(0, COVERED * WINDOW - (WINDOW - STEP))


def test_the_mel_is_librosas(untrained: VoiceEncoder) -> None:
    audio = noise(0.7)
    expected = librosa.feature.melspectrogram(
        y=audio.numpy(), sr=JUDGE_HZ, n_fft=N_FFT, hop_length=HOP, n_mels=NUM_MELS
    )
    torch.testing.assert_close(untrained._mel(audio), torch.from_numpy(expected.T))


@settings(max_examples=15, deadline=None)
@given(seconds=st.floats(0.03, 4.0), level=st.floats(1e-4, 0.5))
def test_a_voice_is_a_unit_vector(untrained: VoiceEncoder, seconds: float, level: float) -> None:
    voice = untrained.voice(noise(seconds, level))
    assert voice is not None and voice.shape == (256,) and bool((voice >= 0).all())
    assert float(voice.norm()) == pytest.approx(1.0, abs=1e-5)


def test_pauses_say_nothing(untrained: VoiceEncoder) -> None:
    speech = noise(2.4)
    torn = torch.cat([speech[:19_200], torch.zeros(32_000), speech[19_200:]])
    left = len(without_pauses(torn)) - len(without_pauses(speech))
    assert left == 2 * 3 * 480  # three stretches at each side of the pause
    assert untrained.voice(torch.zeros(16_000)) is None and untrained.voice(torch.zeros(0)) is None


def test_soft_speech_is_raised_and_loud_speech_left() -> None:
    for level, expected in ((0.001, 10 ** (-30 / 20)), (0.2, 0.2)):
        heard = without_pauses(noise(1.0, level))
        assert float(heard.square().mean().sqrt()) == pytest.approx(expected, rel=0.02)


def test_likeness_to_the_recording_and_to_the_speaker(
    untrained: VoiceEncoder, tmp_path: Path
) -> None:
    clips = [noise(2.0, seed=0), noise(2.0, seed=1).cumsum(0) / 40, noise(2.0, seed=2)]
    for number, clip in enumerate(clips):
        write_audio(tmp_path / f"{number}.wav", clip, JUDGE_HZ)
    said, *voice = [Recording(torch.zeros(1, 1), tmp_path / f"{k}.wav", None) for k in range(3)]
    judge = Likeness(untrained)
    row = judge(Take("x", said.audio(JUDGE_HZ), "", said, "ann", voice))
    assert row["voice_recording"] == pytest.approx(1.0, abs=1e-4)
    vectors = [untrained.voice(clip.audio(JUDGE_HZ)) for clip in (said, *voice)]
    own, one, other = [vector for vector in vectors if vector is not None]
    mean = (one + other) / (one + other).norm()
    assert row["voice_training"] == pytest.approx(float(own @ mean), abs=1e-4)
    itself = judge(Take("x", said.audio(JUDGE_HZ), "_recorded", said, "ann", voice))
    assert set(itself) == {"voice_training_recorded"}
    assert judge(Take("x", torch.zeros(8000), "", said, "ann", voice)) == {}
    assert judge(Take("x", clips[0], "", None, "bob", [])) == {}


def test_missing_and_broken_weights_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profforce.evaluation.packages.find_spec", lambda _: None)
    with pytest.raises(UserError, match="weights of the judge speaker are not installed; run: pip"):
        VoiceEncoder.pretrained()
    path = tmp_path / "pretrained.pt"
    monkeypatch.setattr("profforce.evaluation.voice.file_of", lambda *_: path)
    for content in (b"no weights", b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match="weights cannot be read"):
            VoiceEncoder.pretrained()
    torch.save({"model_state": {}}, path)
    with pytest.raises(UserError, match="weights cannot be read"):
        VoiceEncoder.pretrained()


@pytest.mark.slow
def test_two_people_sound_less_alike_than_one() -> None:
    """Weights of the wheel; one voice of ``hibari-tts`` and the same, a fifth higher."""
    pytest.importorskip("hibari")
    try:
        encoder = VoiceEncoder.pretrained()
    except UserError as err:
        pytest.skip(str(err))
    from hibari import Hibari

    read = Hibari()
    texts = ["The meeting is at four in the garden.", "My brother sold the old boat in spring."]
    clips = [resample(torch.from_numpy(read(text, seed=0)), 24_000, JUDGE_HZ) for text in texts]
    higher = [
        torch.from_numpy(np.asarray(librosa.effects.pitch_shift(c.numpy(), sr=JUDGE_HZ, n_steps=7)))
        for c in clips
    ]
    mine, again, other = (encoder.voice(clip) for clip in (*clips, higher[1]))
    assert mine is not None and again is not None and other is not None
    assert float(mine @ again) > 0.8 > 0.75 > float(mine @ other)
