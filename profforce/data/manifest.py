"""A corpus on disk: ``metadata.csv`` (LJSpeech's columns) or ``manifest.jsonl``, and audio files.

Byte-order marks, CRLF and blank lines are tolerated. Everything else that is wrong is a
:class:`DefectError` (a ``UserError``) naming ``file:line``; ``profforce data check`` reads lines
by the same functions and goes on after a defect.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from profforce.config import MISSING_TEXT, DataConfig
from profforce.data.check import audio_kinds, manifest_kinds, text_kinds
from profforce.data.check.kinds import DefectError
from profforce.data.check.lines import decode_line, raw_lines
from profforce.data.check.missing import why_missing
from profforce.data.check.texts import has_too_many_digits
from profforce.errors import UserError

METADATA = "metadata.csv"
MANIFEST = "manifest.jsonl"
PROVENANCE = "corpus.json"
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
ID_HEADERS = frozenset(
    ["id", "file", "filename", "file_name", "audio", "audio_file", "path", "wav"]
)
TEXT_HEADERS = frozenset(["text", "transcript", "transcription", "sentence", "raw_text"])
OTHER_SEPARATORS = "\t;,"


@dataclass(frozen=True)
class Utterance:
    """One line of a manifest."""

    id: str
    audio: Path
    text: str
    """As written."""
    spoken: str
    """The normalized column where there is one, else ``text``; this is what is read aloud."""
    speaker: str | None
    where: str
    """``file:line``, for messages."""


@dataclass(frozen=True)
class Row:
    """What one line says, before its audio is looked for."""

    where: str
    name: str
    """Of the audio: an id or a path."""
    id: str
    text: str
    spoken: str
    """Empty when nothing is said."""
    speaker: str | None


def corpus_root(data: DataConfig) -> Path:
    """``data.root`` as a path; a :class:`UserError` when it was not given."""
    if data.root == MISSING_TEXT or not data.root.strip():
        raise UserError("no corpus folder given", remedy="set data.root=FOLDER")
    return Path(data.root).expanduser()


def corpus_folder(root: Path) -> Path:
    """The folder with the manifest: ``root``, or the one that its ``corpus.json`` points to."""
    provenance = root / PROVENANCE
    if not provenance.is_file():
        return root
    try:
        location = json.loads(provenance.read_text(encoding="utf-8")).get("location")
    except (OSError, ValueError, AttributeError) as error:
        raise DefectError(manifest_kinds.MANIFEST_DESCRIPTION, where=provenance) from error
    return root if location is None else root / Path(str(location))


def read_manifest(folder: Path) -> list[Utterance]:
    """The utterances listed in ``folder``, in the manifest's order, at least one."""
    path = manifest_path(folder)
    utterances = list(_without_duplicates(manifest_utterances(path)))
    if not utterances:
        raise DefectError(manifest_kinds.MANIFEST_EMPTY, where=path)
    return utterances


def manifest_path(folder: Path) -> Path:
    """The one manifest of ``folder``."""
    present = manifests(folder)
    if len(present) > 1:
        got = " and ".join(path.name for path in present)
        raise DefectError(manifest_kinds.MANIFEST_BOTH, where=folder, got=got)
    if not present:
        raise DefectError(manifest_kinds.MANIFEST_MISSING, where=folder)
    return present[0]


def manifests(folder: Path) -> list[Path]:
    """The manifests of ``folder``; a corpus has one."""
    return [folder / name for name in (METADATA, MANIFEST) if is_file(folder / name)]


def require_text(row: Row) -> None:
    """Raise for a line whose transcript is empty or cannot be normalized."""
    if not row.spoken:
        raise DefectError(text_kinds.TEXT_EMPTY, where=row.where)
    if has_too_many_digits(row.spoken):
        raise DefectError(text_kinds.TEXT_DIGITS, where=row.where, got=repr(row.spoken[:40]))


class RowReader:
    """Lines to rows; knows the columns of a ``metadata.csv`` once it has seen its first line."""

    def __init__(self, path: Path) -> None:
        self.find = AudioFinder(path.parent)
        self.is_json = path.name == MANIFEST
        self._columns: int | None = None

    def __call__(self, where: str, line: str) -> Row | None:
        """What ``line`` (not blank) says; None for the header."""
        return self._json_row(where, line) if self.is_json else self._metadata_row(where, line)

    def _metadata_row(self, where: str, line: str) -> Row | None:
        cells = [cell.strip() for cell in line.split("|")]
        self._check_columns(where, line, len(cells))
        first, self._columns = self._columns is None, len(cells)
        if self._is_header(cells):
            if first:
                return None
            raise DefectError(manifest_kinds.LINE_HEADER, where=where, got=repr(line[:80]))
        name, text, spoken = (*cells, "")[:3]
        return self._row(where, name, text, spoken)

    def _json_row(self, where: str, line: str) -> Row:
        row = json_object(where, line)
        audio, text = (json_string(where, row, key) for key in ("audio", "text"))
        spoken, name, speaker = (
            json_string(where, row, key, "") for key in ("normalized_text", "id", "speaker")
        )
        return self._row(where, audio, text, spoken, name, speaker or None)

    def _row(
        self,
        where: str,
        audio: str,
        text: str,
        spoken: str,
        name: str = "",
        speaker: str | None = None,
    ) -> Row:
        spoken = spoken or text
        return Row(where, audio, name or self.find.name_of(audio), text or spoken, spoken, speaker)

    def _check_columns(self, where: str, line: str, count: int) -> None:
        known = self._columns
        if count == known or (known is None and count in (2, 3)):
            return
        other = count == 1 and any(sign in line for sign in OTHER_SEPARATORS)
        raise DefectError(
            manifest_kinds.LINE_SEPARATOR if other else manifest_kinds.LINE_COLUMNS,
            where=where,
            got=str(count),
            expected=f"{known} separated by '|', as in the first line" if known else None,
        )

    def _is_header(self, cells: list[str]) -> bool:
        looks_so = cells[0].lower() in ID_HEADERS and cells[1].lower() in TEXT_HEADERS
        return looks_so and self.find.find(cells[0]) is None


def manifest_utterances(path: Path) -> Iterator[Utterance]:
    """The utterances that the manifest ``path`` lists; ids may occur twice."""
    read = RowReader(path)
    for number, raw in raw_lines(path):
        where = f"{path}:{number}"
        line = decode_line(where, number, raw)
        row = read(where, line) if line else None
        if row is None:
            continue
        require_text(row)
        audio = read.find(where, row.name)
        yield Utterance(row.id, audio, row.text, row.spoken, row.speaker, where)


def json_object(where: str, line: str) -> dict[str, object]:
    """The object that ``line`` holds."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DefectError(
            manifest_kinds.JSON_SYNTAX, where=where, what=f"not JSON ({error})"
        ) from error
    if not isinstance(row, dict):
        raise DefectError(manifest_kinds.JSON_OBJECT, where=where, got=type(row).__name__)
    return row


def json_string(where: str, row: dict[str, object], key: str, default: str | None = None) -> str:
    """The text under ``key``, or ``default``; a :class:`DefectError` if there is neither."""
    value = row.get(key)
    if value is None:
        value = default
    if value is None:
        got = f"the keys {', '.join(row)}"
        raise DefectError(manifest_kinds.JSON_KEY, where=where, what=f"'{key}' is missing", got=got)
    if not isinstance(value, str):
        kind = manifest_kinds.SPEAKER_TYPE if key == "speaker" else manifest_kinds.JSON_TYPE
        what = f"'{key}' is not a text"
        raise DefectError(kind, where=where, what=what, got=repr(value)[:80])
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        what = f"'{key}' holds half of a surrogate pair"
        raise DefectError(
            manifest_kinds.JSON_SURROGATE, where=where, what=what, got=ascii(value)[:80]
        )
    return value.strip()


def _without_duplicates(utterances: Iterator[Utterance]) -> Iterator[Utterance]:
    first: dict[str, str] = {}
    for utterance in utterances:
        if utterance.id in first:
            raise DefectError(
                manifest_kinds.ID_DUPLICATE,
                where=utterance.where,
                what=f"the id {utterance.id!r} occurs twice",
                expected=f"ids that differ; the other is at {first[utterance.id]}",
            )
        first[utterance.id] = utterance.where
        yield utterance


class AudioFinder:
    """Finds the audio file that a manifest's line names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, where: str, name: str) -> Path:
        """The file that ``name`` stands for; a :class:`DefectError` when there is none to use."""
        if not name:
            raise DefectError(audio_kinds.AUDIO_UNNAMED, where=where)
        if _escapes(name):
            raise DefectError(
                audio_kinds.AUDIO_ESCAPES,
                where=where,
                got=repr(name),
                expected=f"a path below {self.folder}",
            )
        found = self.find(name)
        if found is None:
            candidates = self.candidates(name)
            kind, got = why_missing(name, candidates)
            raise DefectError(kind, where=where, got=got, expected=candidates[0])
        return found

    def find(self, name: str) -> Path | None:
        """The file that ``name`` stands for, if there is one."""
        found = next((path for path in self._places(name) if os.path.isfile(path)), None)  # noqa: PTH113
        return None if found is None else Path(found)

    def candidates(self, name: str) -> list[Path]:
        """Where the file may lie: as a path, or as an id in ``wavs`` or beside the manifest."""
        return [Path(path) for path in self._places(name)]

    def _places(self, name: str) -> Iterator[str]:
        """:meth:`candidates` as strings, which for millions of lines are much faster."""
        relative = name.replace("\\", "/")
        folders = (str(self.folder / "wavs"), str(self.folder))
        if relative.lower().endswith(AUDIO_SUFFIXES):
            yield from (f"{folder}{os.sep}{relative}" for folder in reversed(folders))
        else:
            for folder in folders:
                yield from (f"{folder}{os.sep}{relative}{suffix}" for suffix in AUDIO_SUFFIXES)

    def name_of(self, name: str) -> str:
        """The id: the file's path without ``wavs`` and suffix, wherever the file is found."""
        path = PurePosixPath(name.replace("\\", "/"))
        if path.name.lower().endswith(AUDIO_SUFFIXES):
            path = path.with_suffix("")
        parts = path.parts
        return "/".join(parts[1:] if len(parts) > 1 and parts[0] == "wavs" else parts)


def is_file(path: Path) -> bool:
    """Whether ``path`` is a file; also False where the system refuses to look at such a name."""
    try:
        return path.is_file()
    except OSError:
        return False


def _escapes(name: str) -> bool:
    if not name.startswith(("/", "\\")) and ":" not in name and ".." not in name:
        return False
    posix, windows = PurePosixPath(name.replace("\\", "/")), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.anchor) or ".." in posix.parts
