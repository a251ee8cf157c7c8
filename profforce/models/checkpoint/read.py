"""What a checkpoint holds, read without unpickling code."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from profforce.config import MelConfig, ModelConfig
from profforce.errors import UserError
from profforce.models.build import build_model
from profforce.models.checkpoint.parts import (
    DIGESTS,
    FORMAT,
    META,
    STATE,
    WEIGHTS,
    DamagedCheckpointError,
    digest,
    reason,
)
from profforce.models.tts import TTSModel


def load_meta(path: Path) -> dict[str, Any]:
    """``meta.json`` of a checkpoint folder, its format checked.

    Raises:
        UserError: if it is missing, unreadable or of another format.
    """
    file = path / META
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DamagedCheckpointError(
            "not a checkpoint of profforce",
            where=file,
            got=str(err),
            expected="the meta.json of a checkpoint",
        ) from err
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        got = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
        raise UserError(
            "checkpoint of another format", where=file, got=got, expected=f"format {FORMAT}"
        )
    return meta


def load_model(path: Path, device: torch.device) -> tuple[TTSModel, dict[str, Any]]:
    """The model of a checkpoint folder in evaluation mode, and its meta.

    Raises:
        UserError: for a foreign or damaged checkpoint.
    """
    meta = load_meta(path)
    try:
        config = ModelConfig(**meta["model"])
        mel = MelConfig(**meta["mel"])
        model = build_model(config, len(meta["tokenizer"]["symbols"]), mel.num_mels)
        model.load_state_dict(load_file(path / WEIGHTS))
        _refuse_changed(path / WEIGHTS, meta.get(DIGESTS))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as err:
        raise DamagedCheckpointError(
            "checkpoint cannot be loaded",
            where=path,
            got=reason(err),
            remedy="it is damaged or from another version; use another checkpoint",
        ) from err
    return model.to(device).eval(), meta


def _refuse_changed(file: Path, digests: object) -> None:
    """Raise ValueError if ``file`` is not the one written: a flipped bit loads as well as any."""
    if isinstance(digests, dict) and digest(file) != digests.get(file.name):  # older ones have none
        raise ValueError(f"{file.name} is not the file that was written")


def load_train_state(path: Path, device: torch.device) -> dict[str, Any]:
    """``train_state.pt``, read without unpickling code.

    Raises:
        UserError: if it is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path / STATE, map_location=device, weights_only=True)
    except Exception as err:  # torch raises many kinds for damaged files
        raise DamagedCheckpointError(
            "training state cannot be loaded",
            where=path / STATE,
            got=reason(err),
            remedy="remove this checkpoint folder to resume from the one before",
        ) from err
    return state
