"""The pass over the manifest: every line is looked at, none is kept."""

import codecs
import difflib
import json
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from profforce.config import DataConfig, TextConfig, TextFrontEnd
from profforce.data.check import audio_kinds, text_kinds
from profforce.data.check import manifest_kinds as kinds
from profforce.data.check.findings import Findings
from profforce.data.check.ids import id_defects
from profforce.data.check.kinds import DefectError, Kind
from profforce.data.check.lines import decode_line, raw_lines
from profforce.data.check.missing import fold
from profforce.data.check.sides import is_held_out, is_valid_text
from profforce.data.check.speakers import Speakers
from profforce.data.check.table import PackedTexts, Table, digest
from profforce.data.check.texts import (
    has_too_many_digits,
    is_speakable,
    named,
    num_known,
    text_defects,
    unknown_symbols,
)
from profforce.data.manifest import Row, RowReader, require_text
from profforce.data.progress import Progress
from profforce.text.tokenizer import Tokenizer
from profforce.text.words import letters_in

CHUNK = 256
"""Rows normalized at once: an external front end is called once for all of them."""
KEYS = ("audio", "text", "normalized_text", "id", "speaker")


@dataclass
class Rows:
    """What the pass leaves."""

    table: Table = field(default_factory=Table)
    speakers: Speakers = field(default_factory=Speakers)
    paths: PackedTexts = field(default_factory=PackedTexts)
    """Audio files relative to the corpus folder."""
    positions: "array[int]" = field(default_factory=lambda: array("I"))
    """Their rows in the table."""


class ManifestPass:
    """Looks at every line of one manifest."""

    def __init__(
        self, findings: Findings, data: DataConfig, text: TextConfig, *, with_audio: bool
    ) -> None:
        self.path = findings.manifest
        self.findings = findings
        self.data = data
        self.with_audio = with_audio
        self.read = RowReader(self.path)
        self.rows = Rows()
        self._tokenizer = Tokenizer(text)
        self._alphabet = frozenset(self._tokenizer.symbols)
        self._same_normal_form = (
            text.front_end is TextFrontEnd.graphemes
            and text.normalize
            and text.language.lower().startswith("en")
        )
        self._encodings: dict[bool, int] = {}

    def run(self, progress: Progress) -> Rows:
        """Read the manifest to its end."""
        chunk: list[tuple[int, Row, str]] = []
        total, done, last = max(1, _size(self.path) // 1024), 0, b"\n"
        try:
            for number, last in raw_lines(self.path):
                done += len(last)
                if found := self._line(number, last):
                    chunk.append(found)
                if len(chunk) == CHUNK:
                    self._flush(chunk)
                    progress("reading the manifest (KiB)", min(total, done // 1024), total)
            self._flush(chunk)
        except DefectError as defect:  # the file as a whole
            self.findings.refused(defect, line=1)
        else:
            self._at_the_end(last)
        progress("reading the manifest (KiB)", total, total)
        return self.rows

    def _line(self, number: int, raw: bytes) -> tuple[int, Row, str] | None:
        where = f"{self.path}:{number}"
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            self.findings.at(number, kinds.MANIFEST_BOM)
        if raw.endswith(b"\r\n"):
            self.findings.at(number, kinds.LINE_CRLF)
        try:
            line = decode_line(where, number, raw)
            if not raw.isascii():
                self._encodings.setdefault(True, number)
            if not line:
                self.findings.at(number, kinds.LINE_BLANK)
                return None
            row = self.read(where, line)
        except DefectError as defect:
            if defect.kind is kinds.MANIFEST_UTF16:  # no line of it can be read
                raise
            if defect.kind is kinds.LINE_ENCODING:
                self._encodings.setdefault(False, number)
            self.findings.refused(defect, number)
            return None
        return None if row is None else (number, row, line)

    def _flush(self, chunk: list[tuple[int, Row, str]]) -> None:
        spoken = ["" if has_too_many_digits(row.spoken) else row.spoken for _, row, _ in chunk]
        normalized = self._tokenizer.normalize_many(spoken)
        for (number, row, line), normal in zip(chunk, normalized, strict=True):
            self._row(number, row, line, normal)
        chunk.clear()

    def _row(self, number: int, row: Row, line: str, normal: str) -> None:
        find, table = self.findings, self.rows.table
        before = find.num_broken
        find.all_at(number, self._text(row, normal))
        find.all_at(number, id_defects(row.id))
        if self.read.is_json:
            find.all_at(number, _key_defects(line))
        audio = self._audio(number, row)
        table.lines.append(number)
        table.ids.append(digest(row.id))
        table.folded_ids.append(digest(fold(row.id)))
        table.contents.append(digest(line))
        table.words.append(digest(letters_in(row.spoken)))
        table.audio.append(digest(audio))
        table.num_symbols.append(num_known(normal, self._alphabet))
        usable = find.num_broken == before
        held_out = self._is_held_out(row.spoken, normal) if usable else -1
        table.held_out.append(held_out)
        self.rows.speakers.add(row.speaker, number, held_out)
        if audio:
            self.rows.paths.append(audio)
            self.rows.positions.append(len(table) - 1)

    def _text(self, row: Row, normal: str) -> Iterator[tuple[Kind, str | None]]:
        try:
            require_text(row)
        except DefectError as defect:
            yield defect.kind, defect.got
            return
        yield from text_defects(row.spoken)
        if row.text != row.spoken:
            yield from ((kind, got) for kind, got in text_defects(row.text) if kind.mendable)
        if not is_speakable(normal, self._alphabet):
            yield text_kinds.TEXT_UNSPEAKABLE, repr(row.spoken[:60])
        elif unknown := unknown_symbols(normal, self._alphabet):
            yield text_kinds.TEXT_ALPHABET, named(unknown)

    def _audio(self, number: int, row: Row) -> str:
        """The path of the row's audio in the corpus folder; empty where there is none."""
        if not self.with_audio:
            return ""
        try:
            path = self.read.find(row.where, row.name)
        except DefectError as defect:
            self.findings.refused(defect, number)
            return ""
        if path.is_symlink() and not _is_below(path, self.path.parent):
            self.findings.at(number, audio_kinds.AUDIO_OUTSIDE, f"{path} -> {path.resolve()}")
        return path.relative_to(self.path.parent).as_posix()

    def _is_held_out(self, spoken: str, normal: str) -> bool:
        if self._same_normal_form:
            return is_held_out(normal, self.data.valid_fraction)
        return is_valid_text(spoken, self.data.valid_fraction)

    def _at_the_end(self, last: bytes) -> None:
        if not last.endswith(b"\n"):
            self.findings.add_file(kinds.MANIFEST_UNFINISHED, self.path)
        if len(self._encodings) == 2:
            good, bad = self._encodings[True], self._encodings[False]
            got = f"UTF-8 in line {good}, another in line {bad}"
            self.findings.add_file(kinds.MANIFEST_MIXED, self.path, got)
        if not len(self.rows.table) and not self.findings.num_broken:
            self.findings.add_file(kinds.MANIFEST_EMPTY, self.path)


def _key_defects(line: str) -> Iterator[tuple[Kind, str]]:
    """Keys of a JSON line that occur twice or are spelt like a known one that is absent."""
    pairs: list[str] = []

    def remember(found: list[tuple[str, object]]) -> None:
        pairs[:] = [key for key, _ in found]  # the outermost object comes last

    with suppress(RecursionError):  # nested so deep that the reader just managed it
        json.loads(line, object_pairs_hook=remember)
    for key in dict.fromkeys(key for key in pairs if pairs.count(key) > 1):
        yield kinds.JSON_REPEATED_KEY, repr(key)
    absent = [key for key in KEYS if key not in pairs]
    for key in dict.fromkeys(pairs):
        if key not in KEYS and (near := difflib.get_close_matches(key.lower(), absent, 1, 0.8)):
            yield kinds.JSON_MISSPELT_KEY, f"{key!r}, perhaps {near[0]!r}"


def _is_below(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
