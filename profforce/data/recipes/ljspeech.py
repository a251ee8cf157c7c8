"""LJSpeech-1.1 (Ito & Johnson 2017): 24 hours of one reader, public domain.

A copy that is at hand is used where it lies; only an archive is unpacked.
"""

import importlib
import logging
import os
import shutil
import tarfile
from pathlib import Path

from profforce.config import DataConfig
from profforce.data.corpus import corpus_root
from profforce.data.manifest import METADATA
from profforce.data.progress import Progress
from profforce.data.recipes.common import write_provenance
from profforce.errors import UserError

log = logging.getLogger(__name__)

NAME = "LJSpeech-1.1"
ARCHIVE = f"{NAME}.tar.bz2"
REMEDY = f"fetch {ARCHIVE} yourself and set data.source to the archive or its unpacked folder"


def make(data: DataConfig, progress: Progress | None = None) -> None:
    """Point ``data.root`` to LJSpeech, which is unpacked or downloaded only when it must be.

    ``data.source`` may be its folder or archive. Raises :class:`UserError` when it cannot be had.
    """
    root = corpus_root(data)
    folder = _find(data, root)
    if folder != root:
        inside = folder.is_relative_to(root)
        location = folder.relative_to(root).as_posix() if inside else str(folder.resolve())
        facts = {"location": location, "licence": "public domain"}
        write_provenance(root, "ljspeech", facts)


def _find(data: DataConfig, root: Path) -> Path:
    if data.source is None:
        return _corpus_in(root) or _unpacked(root / ARCHIVE, root) or _downloaded(root)
    source = Path(data.source).expanduser()
    folder = _corpus_in(source) or _corpus_in(root) or _unpacked(source, root)
    if folder is None:
        raise UserError(
            f"no {NAME} here",
            where=source,
            expected=f"a folder with {METADATA} and wavs, or {ARCHIVE}",
        )
    return folder


def _corpus_in(folder: Path) -> Path | None:
    candidates = (folder, folder / NAME)
    return next((c for c in candidates if (c / METADATA).is_file() and (c / "wavs").is_dir()), None)


def _unpacked(archive: Path, root: Path) -> Path | None:
    """Unpack ``archive`` into ``root`` beside and rename, so that half a corpus is never taken."""
    if not archive.is_file():
        return None
    log.info("unpacking %s", archive)
    beside = root / f".unpack.{os.getpid()}"
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(beside, filter="data")
        return _moved(beside, root)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(
            f"cannot unpack the archive ({error})", where=archive, expected=f"a whole {ARCHIVE}"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _downloaded(root: Path) -> Path:
    """Download through torchaudio; the archive stays, so that a later try need not fetch it."""
    beside = root / "download"
    shutil.rmtree(beside / NAME, ignore_errors=True)  # half unpacked by a run that was killed
    datasets = importlib.import_module("torchaudio.datasets")
    log.info("downloading %s (2.6 GB) to %s", ARCHIVE, beside)
    try:
        beside.mkdir(parents=True, exist_ok=True)
        datasets.LJSPEECH(beside, download=True)
        return _moved(beside, root)
    except (OSError, RuntimeError, tarfile.TarError) as error:
        raise UserError(
            f"downloading LJSpeech failed ({error})", where=root, remedy=REMEDY
        ) from error


def _moved(beside: Path, root: Path) -> Path:
    found = _corpus_in(beside)
    if found is None:
        raise UserError(f"the archive holds no {NAME}", where=root, remedy=REMEDY)
    target = root / NAME
    if _corpus_in(target) is None:
        shutil.rmtree(target, ignore_errors=True)
        found.rename(target)
    return target
