"""Run folders: where a run is to be made, and the settings that are kept in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profforce.errors import UserError
from profforce.runs import held, refuse_used


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


def known_folder(raw: DictConfig) -> Path | None:
    """As :func:`run_folder`; None where it depends on the job."""
    try:
        return run_folder(raw)
    except OmegaConfBaseException:
        return None


@contextmanager
def taken(folder: Path | None, *, resume: bool) -> Iterator[None]:
    """Keep others from a run's folder before Hydra writes settings into it; nothing for None.

    Raises:
        UserError: if another training writes there, or a new run would begin over an old one, or
            the folder cannot be made.
    """
    if folder is None:
        yield
        return
    if not resume:
        refuse_used(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise UserError(f"cannot make the run folder: {err}") from err
    with held(folder):
        yield


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
