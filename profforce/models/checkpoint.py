"""Checkpoints: written aside and renamed, loadable without pickle, last and best kept.

``checkpoints/step-N/model.safetensors`` holds the weights one samples with (averaged when
``trainer.ema_decay`` > 0); ``train_state.pt`` what a resume needs beside; ``meta.json`` what the
weights mean: sizes, mel definition, alphabet, reduction factor, speakers, score.
"""

import json
import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from profforce.config import MelConfig, ModelConfig
from profforce.errors import UserError
from profforce.models.transformer import TransformerTTS
from profforce.text.tokenizer import Tokenizer

FORMAT = 1
WEIGHTS, STATE, META = "model.safetensors", "train_state.pt", "meta.json"
log = logging.getLogger(__name__)


def checkpoint_meta(
    model: TransformerTTS, mel: MelConfig, tokenizer: Tokenizer, speakers: tuple[str, ...]
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
    """Write ``folder/step-N`` whole or not at all; an older one of that step is replaced."""
    final = folder / f"step-{step}"
    aside = folder / f".step-{step}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, aside / WEIGHTS)
    torch.save(dict(state), aside / STATE)
    (aside / META).write_text(json.dumps({**meta, "step": step}, indent=1), encoding="utf-8")
    replaced = folder / f".step-{step}.replaced"
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.replace(replaced)
    aside.replace(final)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def list_checkpoints(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step, meta) of every readable checkpoint, oldest first; unreadable ones are warned of."""
    found = []
    _put_back(folder)
    for path in folder.glob("step-*"):
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            if not ((path / WEIGHTS).is_file() and (path / STATE).is_file()):
                raise ValueError("files are missing")
            found.append((int(meta["step"]), meta))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as err:
            log.warning("%s is not a whole checkpoint and is ignored (%s)", path, err)
    return sorted(found, key=lambda pair: pair[0])


def prune(folder: Path, keep_last: int, keep_best: int) -> None:
    """Remove all but the last and the best checkpoints (lowest free-running score)."""
    found = list_checkpoints(folder)
    kept = {step for step, _ in found[-keep_last:]}
    kept |= {step for step, _ in ranked(found)[:keep_best]}
    for step, _ in found:
        if step not in kept:
            shutil.rmtree(folder / f"step-{step}", ignore_errors=True)


def ranked(found: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Those with a score, best (lowest) first."""
    scored = [pair for pair in found if _is_number(pair[1].get("score"))]
    return sorted(scored, key=lambda pair: pair[1]["score"])


def _is_number(score: object) -> bool:
    return isinstance(score, int | float) and math.isfinite(score)


def _put_back(folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    for replaced in folder.glob(".step-*.replaced"):
        final = folder / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not final.exists():
            replaced.replace(final)


def find_checkpoint(run: Path, which: str) -> Path:
    """The folder of checkpoint ``last``, ``best`` or ``step-N`` of a run.

    Raises:
        UserError: if the run or the checkpoint does not exist.
    """
    folder = run / "checkpoints"
    if not run.is_dir():
        raise UserError("no such run folder", where=run, remedy="give the folder of a training run")
    found = list_checkpoints(folder)
    if not found:
        raise UserError(
            "the run has no checkpoint",
            where=folder,
            expected="step-N folders",
            remedy="train it first or give another run",
        )
    if which == "last":
        return folder / f"step-{found[-1][0]}"
    if which == "best":
        best = ranked(found)
        return folder / f"step-{best[0][0] if best else found[-1][0]}"
    names = [f"step-{step}" for step, _ in found]
    if which not in names:
        raise UserError(
            f"no checkpoint '{which}'", where=folder, expected=f"last, best or {', '.join(names)}"
        )
    return folder / which


def load_meta(path: Path) -> dict[str, Any]:
    """``meta.json`` of a checkpoint folder, its format checked.

    Raises:
        UserError: if it is missing, unreadable or of another format.
    """
    file = path / META
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise UserError(
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


def load_model(path: Path, device: torch.device) -> tuple[TransformerTTS, dict[str, Any]]:
    """The model of a checkpoint folder in evaluation mode, and its meta.

    Raises:
        UserError: for a foreign or damaged checkpoint.
    """
    meta = load_meta(path)
    try:
        config = ModelConfig(**meta["model"])
        mel = MelConfig(**meta["mel"])
        model = TransformerTTS(config, len(meta["tokenizer"]["symbols"]), mel.num_mels)
        model.load_state_dict(load_file(path / WEIGHTS))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as err:
        raise UserError(
            "checkpoint cannot be loaded",
            where=path,
            got=str(err).splitlines()[0],
            remedy="it is damaged or from another version; use another checkpoint",
        ) from err
    return model.to(device).eval(), meta


def load_train_state(path: Path, device: torch.device) -> dict[str, Any]:
    """``train_state.pt``, read without unpickling code.

    Raises:
        UserError: if it is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path / STATE, map_location=device, weights_only=True)
    except Exception as err:  # torch raises many kinds for damaged files
        raise UserError(
            "training state cannot be loaded",
            where=path / STATE,
            got=str(err).splitlines()[0] if str(err) else type(err).__name__,
            remedy="remove this checkpoint folder to resume from the one before",
        ) from err
    return state
