"""A tiny HiFi-GAN on disk."""

import json
from pathlib import Path

import torch

from profforce.audio.hifigan_generator import Generator, generator_config
from profforce.config import MelConfig


def write_hifigan(folder: Path, mel: MelConfig) -> str:
    """A random checkpoint for ``mel``, whose hop is a multiple of 32; its path."""
    torch.manual_seed(0)
    settings: dict[str, object] = {
        "resblock": "1",
        "upsample_rates": [8, mel.hop_length // 8],
        "upsample_kernel_sizes": [16, mel.hop_length // 4],
        "upsample_initial_channel": 8,
        "resblock_kernel_sizes": [3, 5],
        "resblock_dilation_sizes": [[1, 3], [1, 2]],
        "num_mels": mel.num_mels,
        "n_fft": mel.n_fft,
        "hop_size": mel.hop_length,
        "win_size": mel.win_length,
        "sampling_rate": mel.sample_rate,
        "fmin": mel.fmin_hz,
        "fmax": mel.fmax_hz,
    }
    torch.save(Generator(generator_config(settings)).state_dict(), folder / "g.pt")
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder / "g.pt")
