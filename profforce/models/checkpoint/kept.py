"""The checkpoints of a run: which there are, which is the best, which stay."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

from profforce.errors import UserError, did_you_mean
from profforce.models.checkpoint.parts import META, STATE, WEIGHTS

log = logging.getLogger(__name__)


def list_checkpoints(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step, meta) of every readable checkpoint, oldest first; unreadable ones are warned of."""
    found = []
    for path in folder.glob("step-*"):
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            if not ((path / WEIGHTS).is_file() and (path / STATE).is_file()):
                raise ValueError("files are missing")
            step = int(meta["step"])
            if path.name != f"step-{step}":
                raise ValueError(f"its {META} says step {step}: was it renamed?")
            found.append((step, meta))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as err:
            log.warning("%s is not a whole checkpoint and is ignored (%s)", path, err)
    return sorted(found, key=lambda pair: pair[0])


def _runs_beside(run: Path) -> list[str]:
    """Names of the runs in the same folder, whose name may be misspelt itself."""
    try:
        return [path.name for path in run.parent.iterdir() if (path / "checkpoints").is_dir()]
    except OSError:
        return []


def find_checkpoint(run: Path, which: str) -> Path:
    """The folder of checkpoint ``last``, ``best`` or ``step-N`` of a run.

    Raises:
        UserError: if the run or the checkpoint does not exist.
    """
    folder = run / "checkpoints"
    if not run.is_dir():
        meant = did_you_mean(run.name, _runs_beside(run))
        raise UserError(
            f"no such run folder{meant}", where=run, remedy="give the folder of a training run"
        )
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
