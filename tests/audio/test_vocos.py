"""Vocos from weights in the published layout: audio, streams, and every way not to fit."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from profforce.audio.mel import mel_filterbank
from profforce.audio.vocoder import build_vocoder
from profforce.audio.vocos import FILTERBANK, Vocos
from profforce.audio.vocos_network import VocosConfig, VocosNetwork
from profforce.config import MelConfig, VocoderKind
from profforce.errors import UserError

MEL = MelConfig()
SMALL = VocosConfig(80, 24, 40, 3, 1024, 256)
Config = dict[str, dict[str, Any]]


def config() -> Config:
    """As the published config.yaml of weights for HiFi-GAN's mels."""
    mel = {"sample_rate": 22050, "n_fft": 1024, "hop_length": 256, "n_mels": 80, "padding": "same"}
    slaney = {"f_min": 0, "f_max": 8000, "norm": "slaney", "mel_scale": "slaney"}
    backbone = {"input_channels": 80, "dim": 24, "intermediate_dim": 40, "num_layers": 3}
    head = {"dim": 24, "n_fft": 1024, "hop_length": 256, "padding": "same"}
    return {
        "feature_extractor": {
            "class_path": "vocos.feature_extractors.MelSpectrogramFeatures",
            "init_args": {**mel, **slaney},
        },
        "backbone": {"class_path": "vocos.models.VocosBackbone", "init_args": backbone},
        "head": {"class_path": "vocos.heads.ISTFTHead", "init_args": head},
    }


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "feature_extractor.mel_spec.spectrogram.window": torch.hann_window(1024),
        **{name: value.clone() for name, value in VocosNetwork(SMALL).state_dict().items()},
        "head.istft.window": torch.hann_window(1024),
    }


def write(folder: Path, settings: Config, state: dict[str, torch.Tensor]) -> str:
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    torch.save(state, folder / "pytorch_model.bin")
    return str(folder)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Vocos:
    return Vocos(MEL, checkpoint=write(tmp_path_factory.mktemp("vocos"), config(), weights()))


def test_a_folder_and_both_kinds_of_files_are_read(tmp_path: Path) -> None:
    mel = torch.randn(9, 80)
    folder = write(tmp_path, config(), weights())
    audio = build_vocoder(VocoderKind.vocos, MEL, checkpoint=folder)(mel)
    assert audio.shape == (9 * 256,) and audio.dtype == torch.float32 and bool(audio.any())
    assert Vocos(MEL, checkpoint=folder)(mel[:0]).shape == (0,)
    file = str(tmp_path / "pytorch_model.bin")
    assert torch.equal(Vocos(MEL, checkpoint=file)(mel), audio)
    (tmp_path / "pytorch_model.bin").unlink()
    save_file(weights(), tmp_path / "model.safetensors")
    assert torch.equal(Vocos(MEL, checkpoint=folder)(mel), audio)


@settings(deadline=None, max_examples=25)
@given(length=st.integers(1, 40), sizes=st.lists(st.integers(0, 12), max_size=6))
def test_vocos_in_parts_is_the_whole(small: Vocos, length: int, sizes: list[int]) -> None:
    mel = torch.randn(length, 80, generator=torch.Generator().manual_seed(length))
    stream, whole, made, at = small.stream(), small(mel), [], 0
    for size in sizes:
        made.append(stream.push(mel[at : at + size], False))
        at += size
    streamed = torch.cat([*made, stream.push(mel[at:], True)])
    assert streamed.shape == whole.shape
    assert (streamed - whole).abs().max() < 1e-5


def test_the_original_24_khz_weights_are_refused_with_both_values(tmp_path: Path) -> None:
    settings = config()
    mel = {"sample_rate": 24000, "n_fft": 1024, "hop_length": 256, "n_mels": 100}
    settings["feature_extractor"]["init_args"] = {**mel, "padding": "center"}
    settings["backbone"]["init_args"]["input_channels"] = 100
    folder = write(tmp_path, settings, {FILTERBANK: torch.zeros(513, 100)})
    with pytest.raises(UserError) as caught:
        Vocos(MEL, checkpoint=folder)
    message = str(caught.value)
    assert "\n" not in message and "another mel definition" in message
    for pair in ("22050 != 24000", "80 != 100", "8000.0 != 12000.0", "slaney != htk"):
        assert pair in message


def test_filters_among_the_weights_count_more_than_the_config(tmp_path: Path) -> None:
    settings = config()
    for name in ("f_min", "f_max", "norm", "mel_scale"):
        del settings["feature_extractor"]["init_args"][name]
    with pytest.raises(UserError, match=r"mel norm slaney != None"):
        Vocos(MEL, checkpoint=write(tmp_path, settings, weights()))
    own = {**weights(), FILTERBANK: mel_filterbank(MEL).T.clone()}
    Vocos(MEL, checkpoint=write(tmp_path, settings, own))
    other = mel_filterbank(MelConfig(fmax_hz=7600.0)).T.clone()
    with pytest.raises(UserError, match="another mel definition"):
        Vocos(MEL, checkpoint=write(tmp_path, settings, {**own, FILTERBANK: other}))


def _encodec(settings: Config) -> None:
    settings["feature_extractor"]["class_path"] = "vocos.feature_extractors.EncodecFeatures"


def _conditioned(settings: Config) -> None:
    settings["backbone"]["init_args"]["adanorm_num_embeddings"] = 4


def _wider(settings: Config) -> None:
    settings["backbone"]["init_args"]["dim"] = 32


def _other_hop(settings: Config) -> None:
    settings["head"]["init_args"]["hop_length"] = 128


def _no_number(settings: Config) -> None:
    settings["feature_extractor"]["init_args"]["n_fft"] = "many"


def _no_head(settings: Config) -> None:
    del settings["head"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_encodec, "this Vocos cannot be run; got feature_extractor"),
        (_conditioned, "not for EnCodec's tokens"),
        (_wider, "cannot load the Vocos weights"),
        (_other_hop, "every 128 samples, the mels have 80 every 256"),
        (_no_number, "misstates the mel definition"),
        (_no_head, "this Vocos cannot be run; got head: None"),
    ],
)
def test_each_unfit_config_is_one_line(
    tmp_path: Path, spoil: Callable[[Config], None], reason: str
) -> None:
    settings = config()
    spoil(settings)
    with pytest.raises(UserError, match=reason) as caught:
        Vocos(MEL, checkpoint=write(tmp_path, settings, weights()))
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_no_weights_are_one_line(tmp_path: Path) -> None:
    def refused(checkpoint: str | None, reason: str) -> None:
        with pytest.raises(UserError, match=reason) as caught:
            Vocos(MEL, checkpoint=checkpoint)
        assert "\n" not in str(caught.value)

    refused(None, "set vocoder_checkpoint=PATH")
    refused(str(tmp_path), "no such vocoder checkpoint")
    folder = write(tmp_path, config(), weights())
    (tmp_path / "pytorch_model.bin").write_bytes(b"no weights")
    refused(folder, "cannot load the Vocos weights")
    (tmp_path / "config.yaml").write_text("a: [", encoding="utf-8")
    refused(folder, "cannot read Vocos' config")
    (tmp_path / "config.yaml").unlink()
    refused(folder, "must lie beside")


def test_the_audio_is_that_of_the_vocos_package(tmp_path: Path) -> None:
    """Runs where the package is (``PYTHONPATH``); it is no extra, for it pins an old EnCodec."""
    pytest.importorskip("vocos", reason="the package vocos is not installed")
    from vocos.feature_extractors import FeatureExtractor
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone
    from vocos.pretrained import Vocos as Theirs

    assert "vocos" in sys.modules
    torch.manual_seed(0)
    for padding in ("same", "center"):
        theirs = Theirs(
            FeatureExtractor(), VocosBackbone(80, 24, 40, 3), ISTFTHead(24, 1024, 256, padding)
        ).eval()
        for value in theirs.parameters():
            torch.nn.init.normal_(value, std=0.2)
        settings = config()
        settings["head"]["init_args"]["padding"] = padding
        folder = write(tmp_path, settings, theirs.state_dict())
        mel = torch.randn(20, 80)
        ours, whole = Vocos(MEL, checkpoint=folder)(mel), theirs.decode(mel.T[None])[0]
        cut = (len(ours) - len(whole)) // 2  # "center" leaves out half a hop at both ends
        assert cut == {"same": 0, "center": 128}[padding]
        torch.testing.assert_close(ours[cut : len(ours) - cut], whole, rtol=1e-4, atol=1e-4)
