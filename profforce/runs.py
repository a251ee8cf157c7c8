"""Run folders, as far as they must be known without PyTorch."""

from pathlib import Path

from profforce.errors import UserError


def refuse_used(folder: Path) -> None:
    """Raise :class:`UserError` if a run got as far as its first whole checkpoint here.

    Only then is there work to lose: a run killed before may simply start again.
    """
    if any((folder / "checkpoints").glob("step-*")):
        raise UserError(
            "the folder holds a run already",
            where=folder,
            remedy=f"continue it with --resume {folder}, or choose another hydra.run.dir",
        )
