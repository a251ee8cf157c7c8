"""Checkpoints: written aside and renamed, loadable without pickle, last and best kept.

``checkpoints/step-N/model.safetensors`` holds the weights one samples with (averaged when
``trainer.ema_decay`` > 0); ``train_state.pt`` what a resume needs beside; ``meta.json`` what the
weights mean: sizes, mel definition, alphabet, reduction factor, speakers, score; and the digests of
the other two files, by which damage is known. Reading never changes a folder; a resume may.
"""

import hashlib
import json
import logging
import math
import os
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
from profforce.models.build import build_model
from profforce.models.tts import TTSModel
from profforce.text.tokenizer import Tokenizer

FORMAT = 1
WEIGHTS, STATE, META = "model.safetensors", "train_state.pt", "meta.json"
DIGESTS = "sha256"
log = logging.getLogger(__name__)


class DamagedCheckpointError(UserError):
    """A checkpoint that is not as it was written: the one before may still do."""


class SaveError(UserError):
    """A run's folder takes no more writing; what was saved before is untouched."""

    exit_code = 1
    """The command line was right, the task failed."""


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
    save_file({name: value.contiguous() for name, value in weights.items()}, aside / WEIGHTS)
    torch.save(dict(state), aside / STATE)
    digests = {name: _digest(aside / name) for name in (WEIGHTS, STATE)}
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
        _put_back(final.parent)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(err: BaseException) -> str:
    """The first line of an error, or its kind where it says nothing."""
    return str(err).splitlines()[0] if str(err) else type(err).__name__


def list_checkpoints(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step, meta) of every readable checkpoint, oldest first; unreadable ones are warned of."""
    found = []
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
    """Those with a score, best (lowest) first; of several kinds of score, that of the last."""
    by = found[-1][1].get("score_by", "gap") if found else "gap"
    scored = [
        pair
        for pair in found
        if _is_number(pair[1].get("score")) and pair[1].get("score_by", "gap") == by
    ]
    return sorted(scored, key=lambda pair: pair[1]["score"])


def _is_number(score: object) -> bool:
    return isinstance(score, int | float) and math.isfinite(score)


def _put_back(folder: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    for replaced in folder.glob(".step-*.replaced"):
        final = folder / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not final.exists():
            replaced.replace(final)


def recover(run: Path) -> Path:
    """The last checkpoint of a run that is as it was written, for a resume.

    Newer ones that are damaged are set aside as ``.step-N.damaged`` and named in the log, so that
    they are neither sampled from nor counted among those to keep.

    Raises:
        DamagedCheckpointError: if every checkpoint of the run is damaged.
        UserError: if the run has no checkpoint, or the last is of another format.
    """
    folder = run / "checkpoints"
    _put_back(folder)
    names = sorted((n for p in folder.glob("step-*") if (n := p.name[5:]).isdecimal()), key=int)
    damaged: dict[Path, DamagedCheckpointError] = {}
    for path in (folder / f"step-{name}" for name in reversed(names)):
        try:
            check_whole(path)
        except DamagedCheckpointError as err:
            damaged[path] = err
            continue
        for other, damage in damaged.items():
            _set_aside(other)
            log.warning("%s; set aside; resuming from %s", damage, path.name)
        return path
    if damaged:
        raise next(iter(damaged.values()))
    return find_checkpoint(run, "last")


def check_whole(path: Path) -> None:
    """Compare the files of a checkpoint with the digests taken when they were written.

    Raises:
        DamagedCheckpointError: if one is missing, unreadable or another.
        UserError: for another format.
    """
    meta = load_meta(path)
    digests = meta.get(DIGESTS)
    if not isinstance(digests, dict):  # written before there were digests
        load_train_state(path, torch.device("cpu"))
        return
    for name, what in ((STATE, "training state"), (WEIGHTS, "weights")):
        try:
            good = _digest(path / name) == digests.get(name)
            got = f"{(path / name).stat().st_size} bytes that are not those written"
        except OSError as err:
            good, got = False, reason(err)
        if not good:
            raise DamagedCheckpointError(
                f"{what} of a checkpoint damaged", where=path / name, got=got
            )


def _set_aside(path: Path) -> None:
    target = path.with_name(f".{path.name}.damaged")
    shutil.rmtree(target, ignore_errors=True)
    path.replace(target)


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
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as err:
        raise DamagedCheckpointError(
            "checkpoint cannot be loaded",
            where=path,
            got=reason(err),
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
        raise DamagedCheckpointError(
            "training state cannot be loaded",
            where=path / STATE,
            got=reason(err),
            remedy="remove this checkpoint folder to resume from the one before",
        ) from err
    return state
