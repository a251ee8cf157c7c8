"""Run folders, as far as they must be known without PyTorch."""

from pathlib import Path

from profforce.errors import UserError


def holds_run(folder: Path) -> bool:
    """Whether a run got as far as its first whole checkpoint here.

    A checkpoint whose replacement was cut off counts: a resume puts it back.
    """
    checkpoints = folder / "checkpoints"
    return any(checkpoints.glob("step-*")) or any(checkpoints.glob(".step-*.replaced"))


def refuse_used(folder: Path) -> None:
    """Raise :class:`UserError` if a run got as far as its first whole checkpoint here.

    Only then is there work to lose: a run killed before may simply start again.
    """
    if holds_run(folder):
        raise UserError(
            "the folder holds a run already",
            where=folder,
            remedy=f"continue it with --resume {folder}, or choose another hydra.run.dir",
        )
