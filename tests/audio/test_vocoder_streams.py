"""Audio made from frames as they come is the audio of the whole, or as good."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.audio.griffin_lim import GriffinLim
from profforce.audio.hifigan import HifiGan
from profforce.audio.hifigan_generator import Generator, generator_config
from profforce.audio.mel import MelSpectrogram
from profforce.audio.vocoder import VocoderStream
from profforce.config import MelConfig

MEL = MelConfig()
SETTINGS: dict[str, object] = {
    "upsample_rates": [8, 8, 4],
    "upsample_kernel_sizes": [16, 16, 8],
    "upsample_initial_channel": 16,
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3], [1, 2]],
    "num_mels": 80,
    "n_fft": 1024,
    "hop_size": 256,
    "win_size": 1024,
    "sampling_rate": 22050,
    "fmin": 0,
    "fmax": 8000,
}


def hifigan(folder: Path, resblock: str) -> HifiGan:
    torch.manual_seed(0)
    settings = {**SETTINGS, "resblock": resblock}
    state = Generator(generator_config(settings)).state_dict()
    torch.save({"generator": {name: 2 * value for name, value in state.items()}}, folder / "g.pt")
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return HifiGan(MEL, checkpoint=str(folder / "g.pt"))


@pytest.fixture(scope="session", params=["1", "2"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HifiGan:
    return hifigan(tmp_path_factory.mktemp("hifigan"), request.param)


def in_parts(stream: VocoderStream, mel: Tensor, sizes: list[int]) -> list[Tensor]:
    """``mel [T, M]`` pushed in ``sizes``, then what is left."""
    made, at = [], 0
    for size in sizes:
        made.append(stream.push(mel[at : at + size], False))
        at += size
    return [*made, stream.push(mel[at:], True)]


@settings(deadline=None, max_examples=25)
@given(length=st.integers(1, 40), sizes=st.lists(st.integers(0, 12), max_size=6))
def test_hifigan_in_parts_is_the_whole(small: HifiGan, length: int, sizes: list[int]) -> None:
    mel = torch.randn(length, 80, generator=torch.Generator().manual_seed(length))
    whole = small(mel)
    assert whole.abs().max() > 0.05
    streamed = torch.cat(in_parts(small.stream(), mel, sizes))
    assert streamed.shape == whole.shape
    assert (streamed - whole).abs().max() < 1e-4


def field(generator: Generator, frames: int) -> int:
    """Frames ahead that a sample depends on, measured: how far a NaN in the last one reaches."""
    mel = torch.zeros(1, 80, frames)
    mel[..., -1] = torch.nan
    with torch.no_grad():
        audio = generator(mel)[0, 0]
    return frames - 1 - int(audio.isfinite().sum()) // (len(audio) // frames)


def test_hifigan_waits_for_no_more_frames_than_its_field(small: HifiGan) -> None:
    ahead = field(small._generator, 60)
    assert 3 < ahead < 20
    stream, known = small.stream(), 0
    for frame in range(40):
        known += len(stream.push(torch.randn(1, 80), False))
        assert known // 256 >= frame + 1 - ahead - 1
    assert known > 0


def test_the_field_of_the_universal_generator_is_13_frames() -> None:
    universal = {
        **SETTINGS,
        "resblock": "1",
        "upsample_rates": [8, 8, 2, 2],
        "upsample_kernel_sizes": [16, 16, 4, 4],
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    }
    assert field(Generator(generator_config(universal)), 40) == 13


def voice(seconds: float) -> Tensor:
    """A gliding voice-like tone with pauses."""
    time = torch.arange(int(seconds * MEL.sample_rate)) / MEL.sample_rate
    phase = 2 * torch.pi * (110 * time + 15 * (3 * time).sin())
    tone = torch.stack([(k * phase).sin() / k for k in range(1, 20)]).sum(0)
    return 0.1 * tone * (0.55 + 0.45 * (9 * time).sin())


def flux(audio: Tensor) -> Tensor:
    """Rise of the log spectrum from one 128th sample to the next ``[N / 128]``, bins averaged."""
    window = torch.hann_window(512)
    spectrum = torch.stft(audio, 512, 128, window=window, return_complex=True)
    log = (spectrum.abs() + 1e-4).log()
    return (log[:, 1:] - log[:, :-1]).clamp_min(0).mean(0)


@pytest.mark.parametrize("size", [3, 24])
def test_griffin_lims_seams_are_not_heard(size: int) -> None:
    mel = MelSpectrogram(MEL)(voice(2.5))
    vocoder = GriffinLim(MEL)
    whole = vocoder(mel)
    sizes = [size] * (len(mel) // size - 1)
    parts = [part for part in in_parts(vocoder.stream(), mel, sizes) if len(part)]
    streamed = torch.cat(parts)
    assert len(parts) >= 5 and streamed.shape == whole.shape
    at_seam = torch.zeros(len(flux(whole)), dtype=torch.bool)
    for end in torch.tensor([len(part) for part in parts[:-1]]).cumsum(0).tolist():
        at_seam[end // 128 - 2 : end // 128 + 3] = True
    rise, usual = flux(streamed), flux(whole)
    assert rise[at_seam].mean() < 1.15 * max(usual[at_seam].mean(), rise[~at_seam].mean())
    error = (MelSpectrogram(MEL)(streamed) - mel).abs().mean()
    assert error < 1.6 * (MelSpectrogram(MEL)(whole) - mel).abs().mean()


def test_griffin_lims_chunks_do_not_grow_and_come_early() -> None:
    mel, vocoder = torch.full((400, 80), -5.0), GriffinLim(MEL, iterations=2)
    stream = vocoder.stream()
    first = [len(stream.push(mel[at : at + 4], False)) for at in range(0, 20, 4)]
    assert sum(first) > 0
    for at in range(20, 400, 4):
        stream.push(mel[at : at + 4], False)
        assert stream._mel is not None and len(stream._mel) < 60


def test_a_stream_of_one_frame_and_of_none() -> None:
    vocoder = GriffinLim(MEL, iterations=2)
    torch.testing.assert_close(
        vocoder.stream().push(torch.full((1, 80), -5.0), True), vocoder(torch.full((1, 80), -5.0))
    )
    assert vocoder.stream().push(torch.zeros(0, 80), True).shape == (0,)


def test_a_chunk_is_fitted_to_the_audio_before_it() -> None:
    """If that were not held, or not gone on from, seams would fit the mel 1.7 times as badly."""
    analyse, vocoder = MelSpectrogram(MEL), GriffinLim(MEL, iterations=30)
    mel = analyse(voice(2.0))
    parts = [p for p in in_parts(vocoder.stream(), mel, [6] * (len(mel) // 6)) if len(p)]
    ends = (torch.tensor([len(part) for part in parts[:-1]]).cumsum(0) // 256).tolist()

    def seam_error(audio: Tensor) -> float:
        error = (analyse(audio) - mel).abs().mean(1)
        return float(torch.cat([error[end - 2 : end + 3] for end in ends]).mean())

    assert seam_error(torch.cat(parts)) < 1.5 * seam_error(vocoder(mel))
