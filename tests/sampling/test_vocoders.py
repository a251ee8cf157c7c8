"""Every vocoder that takes weights, chosen as a person chooses it, whole and streamed."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

from profforce.audio.vocos_network import VocosConfig, VocosNetwork
from profforce.config import MelConfig, SampleConfig, VocoderKind
from profforce.sampling.run import sample
from profforce.sampling.stream_run import stream_sample
from tests.sampling.conftest import MEL
from tests.sampling.hifigan_files import write_hifigan

FAST = SampleConfig(device="cpu", retries=0, attention_window=None, pictures=False)


def write_vocos(folder: Path, mel: MelConfig) -> str:
    """A random checkpoint for ``mel``; its folder."""
    torch.manual_seed(0)
    network = VocosConfig(mel.num_mels, 16, 32, 2, mel.n_fft, mel.hop_length)
    torch.save(VocosNetwork(network).state_dict(), folder / "pytorch_model.bin")
    features = {
        "sample_rate": mel.sample_rate,
        "n_fft": mel.n_fft,
        "hop_length": mel.hop_length,
        "n_mels": mel.num_mels,
        "f_max": mel.fmax_hz,
        "norm": "slaney",
        "mel_scale": "slaney",
    }
    sizes = asdict(network)
    backbone = {
        "input_channels": mel.num_mels,
        "dim": sizes["width"],
        "intermediate_dim": sizes["inner_width"],
        "num_layers": sizes["num_layers"],
    }
    head = {"dim": sizes["width"], "n_fft": mel.n_fft, "hop_length": mel.hop_length}
    parts = {
        "feature_extractor": ("vocos.feature_extractors.MelSpectrogramFeatures", features),
        "backbone": ("vocos.models.VocosBackbone", backbone),
        "head": ("vocos.heads.ISTFTHead", head),
    }
    written = {
        name: {"class_path": path, "init_args": args} for name, (path, args) in parts.items()
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("kind", [VocoderKind.hifigan, VocoderKind.vocos])
def test_a_checkpoint_by_path_speaks_whole_and_streamed(
    run: Path, tmp_path: Path, kind: VocoderKind
) -> None:
    write = {VocoderKind.hifigan: write_hifigan, VocoderKind.vocos: write_vocos}[kind]
    config = replace(FAST, vocoder=kind, vocoder_checkpoint=write(tmp_path, MEL))
    (whole,) = sample(config, run, ["One two three."], tmp_path / "whole")
    (streamed,) = stream_sample(config, run, ["One two three."], tmp_path / "streamed")
    audio, again = (soundfile.read(str(row["wav"]))[0] for row in (whole, streamed))
    assert len(audio) == 128 * int(str(whole["frames"])) and np.abs(audio).max() > 0
    np.testing.assert_allclose(again, audio, atol=2 / 2**15)
