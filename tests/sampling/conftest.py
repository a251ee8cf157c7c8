"""An untrained run on disk: enough to speak, not to be understood."""

from pathlib import Path

import pytest
import torch

from profforce.config import MelConfig, ModelConfig, TextConfig
from profforce.models.checkpoint import checkpoint_meta, save_checkpoint
from profforce.models.transformer import TransformerTTS
from profforce.text.tokenizer import Tokenizer

MEL = MelConfig(
    sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000.0, num_mels=20
)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = Tokenizer(TextConfig())
    config = ModelConfig(
        width=16,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=2,
        feedforward_width=32,
        prenet_width=8,
        postnet_layers=2,
        postnet_width=8,
        reduction_factor=2,
        num_speakers=2,
    )
    model = TransformerTTS(config, len(tokenizer.symbols), MEL.num_mels)
    model.set_mel_statistics(torch.full((20,), -4.0), torch.full((20,), 1.5))
    with torch.no_grad():
        model.stop_out.bias.fill_(-2.2)
    folder = tmp_path_factory.mktemp("run")
    meta = checkpoint_meta(model, MEL, tokenizer, ("ann", "bob"))
    save_checkpoint(folder / "checkpoints", 1, model.state_dict(), {}, {**meta, "score": 1.0})
    return folder
