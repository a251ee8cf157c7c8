"""A checkpoint written whole or not at all."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from profforce.config import MelConfig
from profforce.disk import told_by_system
from profforce.models.checkpoint.parts import (
    DIGESTS,
    FORMAT,
    META,
    STATE,
    WEIGHTS,
    SaveError,
    digest,
    reason,
)
from profforce.models.tts import TTSModel
from profforce.text.tokenizer import Tokenizer


def checkpoint_meta(
    model: TTSModel, mel: MelConfig, tokenizer: Tokenizer, speakers: tuple[str, ...]
) -> dict[str, Any]:
    """The part of ``meta.json`` that a run does not change."""
    return {
        "format": FORMAT,
        "model": asdict(model.config),
        "mel": asdict(mel),
        "tokenizer": tokenizer.to_meta(),
        "speakers": list(speakers),
    }


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    meta: Mapping[str, Any],
) -> Path:
    """Write ``folder/step-N`` whole or not at all; an older one of that step is replaced.

    Raises:
        SaveError: if the disk is full or the folder read-only; nothing half-written is left.
    """
    final = folder / f"step-{step}"
    aside = folder / f".step-{step}.partial"
    try:
        _write_files(aside, weights, state, {**meta, "step": step})
        _move_into_place(aside, final)
    except (OSError, RuntimeError, SafetensorError) as err:  # torch and safetensors wrap the first
        raise SaveError(
            "checkpoint cannot be written",
            where=final,
            got=reason(err),
            remedy="make room or choose a folder that can be written; the checkpoints before it "
            "are untouched, so --resume goes on from the last",
        ) from err
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


def _write_files(
    aside: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
    """All files of a checkpoint, on the disk itself before the folder gets its name."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    with told_by_system(aside / WEIGHTS):
        save_file({name: value.contiguous() for name, value in weights.items()}, aside / WEIGHTS)
    with told_by_system(aside / STATE):
        torch.save(dict(state), aside / STATE)
    digests = {name: digest(aside / name) for name in (WEIGHTS, STATE)}
    text = json.dumps({**meta, DIGESTS: digests}, indent=1)
    (aside / META).write_text(text, encoding="utf-8")
    for name in (WEIGHTS, STATE, META):
        with (aside / name).open("rb+") as file:
            os.fsync(file.fileno())


def _move_into_place(aside: Path, final: Path) -> None:
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.replace(replaced)
    try:
        aside.replace(final)
    except OSError:
        put_back(final.parent)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def put_back(folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    for replaced in folder.glob(".step-*.replaced"):
        final = folder / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not final.exists():
            replaced.replace(final)
