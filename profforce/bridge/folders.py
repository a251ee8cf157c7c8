"""Run folders: where a run is to be made, and the settings that are kept in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profforce.errors import UserError
from profforce.runs import refuse_used


def saved_folder(run: Path) -> Path:
    """Where Hydra keeps the settings of a run."""
    return (run / ".hydra").absolute()


def run_folder(raw: DictConfig) -> Path:
    """Where the run is to be made.

    Raises:
        UserError: if that is no name.
    """
    folder = str(OmegaConf.select(raw, "hydra.run.dir"))
    if not folder.strip():
        raise UserError(
            "a run needs a folder",
            where="hydra.run.dir",
            got=f"'{folder}'",
            remedy="give its name, or leave it out for runs/DATE/TIME",
        )
    return Path(folder)


def refuse_used_by(raw: DictConfig) -> None:
    """Refuse a run folder with checkpoints before Hydra writes other settings into it."""
    try:
        folder = run_folder(raw)
    except OmegaConfBaseException:  # it depends on the job: the loop looks again
        return
    refuse_used(folder)


@contextmanager
def settings_kept(run: Path | None) -> Iterator[None]:
    """Put back a resumed run's settings, which Hydra rewrites, when the run refuses new ones."""
    saved = [] if run is None else sorted(saved_folder(run).glob("*.yaml"))
    before = [(path, path.read_bytes()) for path in saved]
    try:
        yield
    except UserError:
        for path, content in before:
            aside = path.with_name(f".{path.name}.partial")
            aside.write_bytes(content)
            aside.replace(path)
        raise
