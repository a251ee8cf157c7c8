"""From a source of utterances to the columns of a corpus, in passes that hold a few thousand.

Source: a manifest with audio files and cached features, or tar files with both.
"""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from profforce.config import DataConfig, MelConfig, TextFrontEnd
from profforce.data.check import audio_kinds, manifest_kinds, text_kinds
from profforce.data.check.kinds import DefectError
from profforce.data.check.sides import is_held_out, is_valid_text
from profforce.data.check.texts import is_speakable
from profforce.data.columns import Array, Ragged, RaggedColumn
from profforce.data.features import Features, Mel
from profforce.data.manifest import Utterance
from profforce.data.progress import Progress
from profforce.data.report import CorpusReport, UnknownSymbol
from profforce.data.table import CHUNK, UtteranceTable, build_table, closed, parts, text_parts
from profforce.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SILENT_MARGIN = 1e-3
"""Above the log of the floor, for rounding: frames at the floor hold no sound."""


class Source(Protocol):
    """Where utterances come from."""

    base: Path
    """Folder that audio is relative to."""
    manifest: Path
    """For messages: the file with the lines, or the folder."""
    store: Path
    """Folder for what is kept of a large corpus."""
    reads_ahead: bool
    """Whether every mel can be looked at before the training."""

    def utterances(self) -> Iterator[Utterance]:
        """All of them, in order."""

    def features(self, table: UtteranceTable, progress: Progress | None) -> Features:
        """The mels of the first utterances."""

    def state(self) -> list[tuple[str, int, int]]:
        """(file, size, modification time) of what the utterances were read from."""

    def columns(self, features: Features) -> tuple[dict[str, Array], Sequence[str]]:
        """What :meth:`reopened` makes the features of: columns and names."""

    def reopened(
        self, columns: dict[str, Array], names: Sequence[str], table: UtteranceTable
    ) -> Features | None:
        """The inverse of :meth:`columns`; None if files they lie in are gone."""


@dataclass(frozen=True)
class Assembled:
    """The columns of a corpus."""

    table: UtteranceTable
    features: Features
    symbols: Ragged
    """A row an utterance, empty for those left out."""
    train: Array
    """Positions in the table."""
    valid: Array
    speakers: tuple[str, ...]
    """Sorted."""
    numbers: Array
    """Speaker of each utterance of the table."""
    report: CorpusReport
    fingerprint: str


class Assembly:
    """The passes."""

    def __init__(
        self, source: Source, data: DataConfig, tokenizer: Tokenizer, mel: MelConfig, place: Path
    ) -> None:
        """A large corpus goes into files in ``place``."""
        self.source, self.data, self.tokenizer = source, data, tokenizer
        self.mel, self.place = mel, place
        text = tokenizer.config
        self._one_form = (
            text.front_end is TextFrontEnd.graphemes
            and text.normalize
            and text.language.lower().startswith("en")
        )
        """Whether what is said is also what decides on the side."""
        self._unknown: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def run(self, progress: Progress | None) -> Assembled:
        """Everything; raises :class:`UserError` for the first defect."""
        source, data = self.source, self.data
        utterances, most = source.utterances(), data.num_utterances
        table = build_table(utterances, source.base, source.manifest, self.place, most)
        features = source.features(table, progress)
        seconds = features.num_frames * (self.mel.hop_length / self.mel.sample_rate)
        kept, skipped = _within_limits(data, seconds)
        symbols, valid = self._read_texts(table, kept, progress)
        self._refuse_sound(table, features, symbols, kept)
        speakers, numbers = _speakers(table)
        train, held_out = np.flatnonzero(kept & ~valid), np.flatnonzero(kept & valid)
        _check_sides(data, source.manifest, (train, held_out), skipped)
        unknown = tuple(
            UnknownSymbol(s, count, self._first[s]) for s, count in self._unknown.most_common()
        )
        total = float(seconds[kept].sum())
        report = CorpusReport(len(train), len(held_out), total, skipped, unknown)
        mark = fingerprint(table, features.num_frames, (train, held_out))
        parts = (table, features, symbols, train, held_out, speakers, numbers)
        return Assembled(*parts, report, mark)

    def _read_texts(
        self, table: UtteranceTable, kept: Array, progress: Progress | None
    ) -> tuple[Ragged, Array]:
        """Symbols of each utterance, and which are held out."""
        rows = RaggedColumn(np.int16)
        large = (self.place / "line").is_file()
        if large:
            for part, column in parts(rows):
                column.to_file(self.place / f"symbols.{part}")
        valid = np.zeros(len(table), dtype=bool)
        for first in range(0, len(table), CHUNK):
            positions = range(first, min(first + CHUNK, len(table)))
            texts = [table.spoken(k) for k in positions]
            spoken = self.tokenizer.normalize_many(texts)
            for k, line in zip(positions, spoken, strict=True):
                self._count_unknown(table, k, line)
            rows.extend(self._encoded(table, positions, texts, spoken, kept))
            for k, text, line in zip(positions, texts, spoken, strict=True):
                if kept[k]:
                    valid[k] = self._is_valid(text, line)
            if progress is not None and large:
                progress("reading the texts", positions.stop, len(table))
        columns = {f"symbols.{part}": column for part, column in parts(rows)}
        content = closed(columns, self.place if large else None)
        return Ragged(*text_parts(content, "symbols")), valid

    def _count_unknown(self, table: UtteranceTable, position: int, line: str) -> None:
        if self.tokenizer.knows(line):
            return
        for symbol in line:
            if not self.tokenizer.knows(symbol):
                self._unknown[symbol] += 1
                if symbol not in self._first:
                    self._first[symbol] = table.where(position)

    def _encoded(
        self,
        table: UtteranceTable,
        positions: range,
        texts: Sequence[str],
        spoken: Sequence[str],
        kept: Array,
    ) -> list[list[int]]:
        found: list[list[int]] = []
        alphabet = set(self.tokenizer.symbols)
        for k, text, line in zip(positions, texts, spoken, strict=True):
            if not kept[k]:
                found.append([])
                continue
            if not is_speakable(line, alphabet):
                where, got = table.where(k), repr(text[:60])
                raise DefectError(text_kinds.TEXT_UNSPEAKABLE, where=where, got=got)
            found.append(self.tokenizer.encode_normalized(text, line, drop_unknown=True))
        return found

    def _is_valid(self, text: str, line: str) -> bool:
        fraction = self.data.valid_fraction
        return is_held_out(line, fraction) if self._one_form else is_valid_text(text, fraction)

    def _refuse_sound(
        self, table: UtteranceTable, features: Features, symbols: Ragged, kept: Array
    ) -> None:
        sizes = symbols.sizes()
        if not self.source.reads_ahead:  # the rest is said when it is read
            short = kept & (features.num_frames < sizes - 1)
            for k in np.flatnonzero(short)[:1].tolist():
                _refuse_length(table.where(k), int(features.num_frames[k]), int(sizes[k]) - 1)
            return
        for k in np.flatnonzero(kept).tolist():
            mel, num_symbols = features[k], int(sizes[k]) - 1
            if not _is_plain(mel, num_symbols, self.mel):
                refuse_sound(f"{table.where(k)}: {table.audio(k)}", mel, num_symbols, self.mel)


def _silence(mel: MelConfig) -> float:
    return math.log(mel.log_floor) + SILENT_MARGIN


def _is_plain(features: Mel, num_symbols: int, mel: MelConfig) -> bool:
    """Whether one look is enough to see that nothing is to be refused."""
    frames = len(features)
    return frames >= max(num_symbols, 1) and bool(features[frames // 2].max() > _silence(mel))


def refuse_sound(where: str, features: Mel, num_symbols: int, mel: MelConfig) -> None:
    """Name an utterance whose audio is silent or holds less than a frame a symbol.

    ``features [T, M]``: only the middle frame is read unless that one is silent.
    """
    if _is_plain(features, num_symbols, mel):
        return
    if not len(features) or features.max() <= _silence(mel):
        raise DefectError(audio_kinds.AUDIO_SILENT, where=where)
    _refuse_length(where, len(features), num_symbols)


def _refuse_length(where: str, frames: int, num_symbols: int) -> None:
    if frames < num_symbols:
        got = f"{num_symbols} symbols, {frames} frames"
        raise DefectError(text_kinds.TEXT_TOO_LONG, where=where, got=got)


def fingerprint(table: UtteranceTable, frames: Array, sides: Sequence[Array]) -> str:
    """Changes with every id, text and length, and with the side that an utterance is on."""
    digest = hashlib.sha256()
    ids, texts = table.texts["id"], table.texts["text"]
    for side in sides:
        for k in side.tolist():
            digest.update(f"{ids[k]}\0{texts[k]}\0{int(frames[k])}\n".encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _within_limits(data: DataConfig, seconds: Array) -> tuple[Array, dict[str, int]]:
    short = seconds < max(data.min_seconds, np.finfo(np.float64).tiny)
    long = seconds > data.max_seconds
    reasons = {
        f"shorter than data.min_seconds={data.min_seconds:g}": int(short.sum()),
        f"longer than data.max_seconds={data.max_seconds:g}": int(long.sum()),
    }
    return ~(short | long), {reason: count for reason, count in reasons.items() if count}


def _speakers(table: UtteranceTable) -> tuple[tuple[str, ...], Array]:
    """Names in order, and the number of each utterance's; 0 for a corpus without speakers."""
    codes = table.numbers["speaker"]
    without = codes < 0
    if table.speakers and without.any():
        raise DefectError(manifest_kinds.SPEAKER_MISSING, where=table.where(int(without.argmax())))
    names = tuple(sorted(table.speakers))
    if not names:
        return names, np.zeros(len(table), dtype=np.int32)
    ranks = {name: rank for rank, name in enumerate(names)}
    return names, np.array([ranks[name] for name in table.speakers], dtype=np.int32)[codes]


def _check_sides(
    data: DataConfig, where: Path, sides: Sequence[Array], skipped: dict[str, int]
) -> None:
    kinds = (manifest_kinds.SPLIT_NO_TRAIN, manifest_kinds.SPLIT_NO_VALID)
    for kind, side in zip(kinds, sides, strict=True):
        if not len(side):
            left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise DefectError(
                kind,
                where=data.root if data.shards is None else where,
                got=f"{len(sides[0])} for training, {len(sides[1])} for validation"
                + (f", skipped {left_out}" if left_out else ""),
            )
