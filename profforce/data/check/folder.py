"""Audio files of the corpus folder that no line names."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from profforce.data.check import audio_kinds as kinds
from profforce.data.check.findings import Finding, Findings
from profforce.data.check.table import Digests, Table, digest
from profforce.data.manifest import AUDIO_SUFFIXES, AudioFinder, is_file
from profforce.data.progress import Progress

EVERY = 1000


def check_folder(folder: Path, table: Table, findings: Findings, progress: Progress) -> None:
    """Note files that no row names and linked folders that contain themselves."""
    listed = np.unique(np.asarray(table.audio, dtype=np.uint64))
    ids = np.unique(np.asarray(table.ids, dtype=np.uint64))
    find, seen = AudioFinder(folder), 0
    for path in _audio_files(folder, findings):
        seen += 1
        if seen % EVERY == 0:
            progress("looking through the folder", seen, max(seen, len(table)))
        name = path.relative_to(folder).as_posix()
        if _holds(listed, digest(name)) or not is_file(path):
            continue
        known = _holds(ids, digest(find.name_of(name)))
        kind = kinds.AUDIO_AMBIGUOUS if known else kinds.AUDIO_UNLISTED
        findings.add(kind, Finding(str(path)))


def _audio_files(folder: Path, findings: Findings) -> Iterator[Path]:
    """Audio files below ``folder``; of linked folders only ``wavs`` itself is entered."""
    tops = [folder, *([folder / "wavs"] if (folder / "wavs").is_symlink() else [])]
    for top in tops:
        for parent, folders, names in os.walk(top):
            here = Path(parent)
            for name in sorted(folders):
                if _contains_itself(here / name):
                    target = (here / name).readlink()
                    findings.add(
                        kinds.FOLDER_LOOP, Finding(str(here / name), f"a link to {target}")
                    )
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if name.lower().endswith(AUDIO_SUFFIXES) and not name.startswith("."):
                    yield here / name


def _contains_itself(folder: Path) -> bool:
    if not folder.is_symlink():
        return False
    try:
        return folder.parent.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return True


def _holds(ordered: Digests, value: int) -> bool:
    position = int(np.searchsorted(ordered, np.uint64(value)))
    return position < len(ordered) and int(ordered[position]) == value
