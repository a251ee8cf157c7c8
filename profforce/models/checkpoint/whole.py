"""Checkpoints that are as they were written; others are set aside for a resume."""

import logging
import shutil
from pathlib import Path

import torch

from profforce.models.checkpoint.kept import find_checkpoint
from profforce.models.checkpoint.parts import (
    DIGESTS,
    STATE,
    WEIGHTS,
    DamagedCheckpointError,
    digest,
    reason,
)
from profforce.models.checkpoint.read import load_meta, load_train_state
from profforce.models.checkpoint.write import put_back

log = logging.getLogger(__name__)


def recover(run: Path) -> Path:
    """The last checkpoint of a run that is as it was written, for a resume.

    Newer ones that are damaged are set aside as ``.step-N.damaged`` and named in the log, so that
    they are neither sampled from nor counted among those to keep.

    Raises:
        DamagedCheckpointError: if every checkpoint of the run is damaged.
        UserError: if the run has no checkpoint, or the last is of another format.
    """
    folder = run / "checkpoints"
    put_back(folder)
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
            good = digest(path / name) == digests.get(name)
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
