"""The columns of a large corpus, kept: the next run maps them and reads no line of the manifest.

``<store>/corpus-<key>/`` holds a file a column and ``meta.json``, written last, which says how long
the files are; the folder gets its name when all are on the disk. The key hashes the settings, the
alphabet and the manifest's (or the tar files') size and time: a change makes new columns. The audio
of a manifest is not looked at again, other than for a smaller corpus.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from profforce import __version__
from profforce.config import DataConfig, MelConfig
from profforce.data.assemble import Assembled, Source
from profforce.data.columns import Ragged, mapped
from profforce.data.files import aside, write_json
from profforce.data.report import CorpusReport, UnknownSymbol
from profforce.data.table import NUMBERS, TEXTS, UtteranceTable, text_parts
from profforce.disk import told_by_system
from profforce.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FORMAT = 1
META = "meta.json"
STALE_S = 24 * 3600.0
"""Age from which columns left aside are those of a killed run."""
READ_BY_ALL = ("num_utterances", "valid_fraction", "min_seconds", "max_seconds", "trim_db")
"""Settings of the data that the columns depend on."""


def store_of(source: Source, data: DataConfig, tokenizer: Tokenizer, mel: MelConfig) -> Path:
    """The folder of the columns for these settings."""
    described = {
        "format": [FORMAT, __version__],
        "state": source.state(),
        "data": {name: getattr(data, name) for name in READ_BY_ALL},
        "text": tokenizer.to_meta(),
        "mel": asdict(mel),
    }
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    return source.store / f"corpus-{key}"


def open_stored(folder: Path, source: Source) -> Assembled | None:
    """The corpus whose columns lie in ``folder``; None if they do not, or their mels are gone."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        columns = {name: mapped(folder / name, dtype) for name, dtype in meta["columns"].items()}
        sizes = meta["bytes"]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    if cut := [name for name, column in columns.items() if column.nbytes != sizes.get(name)]:
        log.warning("%s is damaged (%s); the corpus is read anew", folder, ", ".join(cut))
        return None
    table = UtteranceTable(columns, meta["table_speakers"], source.base, source.manifest)
    features = source.reopened(columns, meta["names"], table)
    if features is None:
        log.warning("%s: mels that it names are gone; the corpus is read anew", folder)
        return None
    report = meta["report"]
    unknown = tuple(UnknownSymbol(**row) for row in report.pop("unknown_symbols"))
    log.info("columns of %s; files of audio are not looked at again", folder)
    return Assembled(
        table=table,
        features=features,
        symbols=Ragged(*text_parts(columns, "symbols")),
        train=columns["train"],
        valid=columns["valid"],
        speakers=tuple(meta["speakers"]),
        numbers=columns["number"],
        report=CorpusReport(**report, unknown_symbols=unknown),
        fingerprint=meta["fingerprint"],
    )


@contextmanager
def place_for(folder: Path) -> Iterator[Path]:
    """A folder to write columns to, removed again; those of killed runs are removed first."""
    for left in folder.parent.glob(".corpus-*.part"):
        try:
            if time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # another's, just renamed
            continue
    place = aside(folder)
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def keep(made: Assembled, place: Path, folder: Path, source: Source) -> Assembled:
    """Finish the columns that were begun in ``place`` and move them to ``folder``; opens them."""
    columns, names = source.columns(made.features)
    columns |= {"train": made.train, "valid": made.valid, "number": made.numbers}
    for name, column in columns.items():
        with told_by_system(place / name):
            np.ascontiguousarray(column).tofile(place / name)
    written: dict[str, Any] = {name: column.dtype.str for name, column in columns.items()}
    texts = {f"{n}.{part}": d for n in TEXTS for part, d in _text_types(np.uint8)}
    symbols = {f"symbols.{part}": d for part, d in _text_types(np.int16)}
    written |= texts | symbols | {name: np.dtype(d).str for name, d in NUMBERS.items()}
    write_json(
        place / META,
        {
            "columns": written,
            "bytes": {name: (place / name).stat().st_size for name in written},
            "names": list(names),
            "table_speakers": list(made.table.speakers),
            "speakers": list(made.speakers),
            "report": asdict(made.report),
            "fingerprint": made.fingerprint,
        },
    )
    for name in (*written, META):
        with (place / name).open("rb+") as file:
            os.fsync(file.fileno())
    try:
        place.rename(folder)
    except OSError:
        if (other := open_stored(folder, source)) is not None:  # another run was first
            return other
        shutil.rmtree(folder, ignore_errors=True)  # it is not whole
        place.rename(folder)
    stored = open_stored(folder, source)
    assert stored is not None
    return stored


def _text_types(content: Any) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("content", np.dtype(content).str), ("ends", np.dtype(np.int64).str)


def in_files(place: Path) -> bool:
    """Whether a large corpus was begun in ``place``."""
    return (place / "line").is_file()
