"""What every recipe leaves behind: ``metadata.csv``, ``corpus.json`` and whole audio files."""

import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import soundfile

from profforce.data.files import write_json, write_text
from profforce.data.manifest import METADATA, PROVENANCE
from profforce.errors import UserError


def require(module: str, *, distribution: str, extra: str, why: str) -> tuple[ModuleType, str]:
    """Import an optional ``module``; returns it with its version.

    Raises :class:`UserError` with the install command when it is missing.
    """
    try:
        return importlib.import_module(module), version(distribution)
    except (ImportError, PackageNotFoundError) as error:
        raise UserError(
            f"{why} needs the package {distribution}, which is not installed",
            remedy=f"run: pip install 'profforce[{extra}]'",
        ) from error


def is_whole_wav(path: Path) -> bool:
    """Whether ``path`` is a readable wav that holds sound."""
    try:
        return path.is_file() and soundfile.info(path).frames > 0
    except (soundfile.SoundFileError, OSError):
        return False


def write_metadata(root: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    """Write ``metadata.csv`` of (id, text, normalized text); the audio is ``wavs/<id>.wav``."""
    lines = ["|".join(_cell(cell) for cell in row) for row in rows]
    write_text(root / METADATA, "".join(f"{line}\n" for line in lines))


def write_provenance(root: Path, recipe: str, facts: Mapping[str, object]) -> None:
    """Write ``corpus.json``: which recipe made the corpus, of what, under which licence."""
    write_json(root / PROVENANCE, {"recipe": recipe, **facts})


def _cell(text: str) -> str:
    return " ".join(text.replace("|", " ").split())
