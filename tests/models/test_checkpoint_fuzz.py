"""Whatever bytes the files of a checkpoint hold: loaded, or refused in one line."""

import os
import random
from pathlib import Path

import pytest
import torch

from profforce.config import MelConfig, ModelConfig, TextConfig
from profforce.errors import UserError
from profforce.models.checkpoint import (
    checkpoint_meta,
    load_model,
    load_train_state,
    save_checkpoint,
)
from profforce.models.transformer import TransformerTTS
from profforce.text.tokenizer import Tokenizer

FILES = ("model.safetensors", "train_state.pt", "meta.json")
TRIES = int(os.environ.get("PROFFORCE_FUZZ", "300"))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = ModelConfig(
        width=4, num_heads=2, encoder_layers=1, decoder_layers=2, postnet_layers=0, prenet_width=4
    )
    mel, tokenizer = MelConfig(num_mels=4), Tokenizer(TextConfig())
    model = TransformerTTS(config, len(tokenizer.symbols), mel.num_mels)
    state = {"step": 3, "nested": [torch.ones(2), {"a": 1.5}]}
    meta = checkpoint_meta(model, mel, tokenizer, ())
    folder = tmp_path_factory.mktemp("fuzz") / "checkpoints"
    return save_checkpoint(folder, 3, model.state_dict(), state, {**meta, "score": None})


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, left out, put in or cut off."""
    kind, place = chance.randrange(4), chance.randrange(len(data))
    if kind == 0:
        return data[:place]
    length = chance.choice((1, 2, 8, 64))
    if kind == 1:
        return data[:place] + data[place + length :]
    new = chance.randbytes(length)
    return data[:place] + new + data[place + (length if kind == 2 else 0) :]


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_loaded_or_refused_in_one_line(
    checkpoint: Path, file: str, tmp_path: Path
) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    whole = (checkpoint / file).read_bytes()
    refused = 0
    for seed in range(TRIES):
        (tmp_path / file).write_bytes(damaged(whole, random.Random(seed)))
        for load in (load_model, load_train_state):
            try:
                load(tmp_path, CPU)
            except UserError as error:
                refused += 1
                assert "\n" not in str(error), f"seed {seed}"
    assert refused > TRIES / 10
