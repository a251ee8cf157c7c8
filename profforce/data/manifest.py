"""A corpus on disk: ``metadata.csv`` (LJSpeech's columns) or ``manifest.jsonl``, and audio files.

Byte-order marks, CRLF and blank lines are tolerated. Everything else that is wrong is a
:class:`UserError` naming ``file:line``.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from profforce.errors import UserError

METADATA = "metadata.csv"
MANIFEST = "manifest.jsonl"
PROVENANCE = "corpus.json"
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
ID_HEADERS = frozenset(
    ["id", "file", "filename", "file_name", "audio", "audio_file", "path", "wav"]
)
TEXT_HEADERS = frozenset(["text", "transcript", "transcription", "sentence", "raw_text"])


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


def corpus_folder(root: Path) -> Path:
    """The folder with the manifest: ``root``, or the one that its ``corpus.json`` points to."""
    provenance = root / PROVENANCE
    if not provenance.is_file():
        return root
    try:
        location = json.loads(provenance.read_text(encoding="utf-8")).get("location")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            "cannot read the corpus description",
            where=provenance,
            expected="a JSON object",
            remedy="delete it and prepare the corpus again",
        ) from error
    return root if location is None else root / Path(str(location))


def read_manifest(folder: Path) -> list[Utterance]:
    """The utterances listed in ``folder``, in the manifest's order, at least one."""
    present = [name for name in (METADATA, MANIFEST) if (folder / name).is_file()]
    if len(present) != 1:
        raise UserError(
            "more than one manifest" if present else "no corpus here",
            where=folder,
            got=" and ".join(present) if present else None,
            expected=f"{METADATA} or {MANIFEST}",
            remedy="remove one of them" if present else "check data.root",
        )
    path = folder / present[0]
    read = _read_metadata if present[0] == METADATA else _read_jsonl
    utterances = list(_without_duplicates(read(path)))
    if not utterances:
        raise UserError("the manifest lists no utterance", where=path)
    return utterances


def _read_metadata(path: Path) -> Iterator[Utterance]:
    find = _AudioFinder(path.parent)
    expected: int | None = None
    for number, line in _lines(path):
        where = f"{path}:{number}"
        cells = [cell.strip() for cell in line.split("|")]
        if expected is None:
            _check_first(where, cells)
            expected = len(cells)
            if _is_header(cells, find):
                continue
        if len(cells) != expected:
            raise UserError(
                "wrong number of columns",
                where=where,
                got=f"{len(cells)}",
                expected=f"{expected} separated by '|', as in the first line",
            )
        audio = find(where, cells[0])
        yield _utterance(where, find.name_of(audio), audio, *cells[1:])


def _read_jsonl(path: Path) -> Iterator[Utterance]:
    find = _AudioFinder(path.parent)
    for number, line in _lines(path):
        where = f"{path}:{number}"
        row = _json_object(where, line)
        text = {key: _string(where, row, key) for key in ("audio", "text")}
        extra = {key: _string(where, row, key, "") for key in ("normalized_text", "id", "speaker")}
        audio = find(where, text["audio"])
        yield _utterance(
            where,
            extra["id"] or find.name_of(audio),
            audio,
            text["text"],
            extra["normalized_text"],
            extra["speaker"] or None,
        )


def _utterance(
    where: str, name: str, audio: Path, text: str, spoken: str = "", speaker: str | None = None
) -> Utterance:
    spoken = spoken or text
    if not spoken:
        raise UserError(
            "empty transcript", where=where, remedy="write what is said or remove the line"
        )
    return Utterance(name, audio, text or spoken, spoken, speaker, where)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank with their numbers; ``str.splitlines`` would split at more."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the manifest ({error.strerror})", where=path) from error
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UserError(
                "the line is not UTF-8",
                where=f"{path}:{number}",
                got=f"byte 0x{line[error.start]:02x}",
                remedy="save the file as UTF-8",
            ) from error
        if text:
            yield number, text


def _check_first(where: str, cells: list[str]) -> None:
    if len(cells) not in (2, 3):
        raise UserError(
            "wrong number of columns",
            where=where,
            got=f"{len(cells)}",
            expected="id|text or id|text|normalized_text",
        )


def _is_header(cells: list[str], find: "_AudioFinder") -> bool:
    names = [cell.lower() for cell in cells]
    looks_so = names[0] in ID_HEADERS and names[1] in TEXT_HEADERS
    return looks_so and find.find(cells[0]) is None


def _json_object(where: str, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"not JSON ({error})", where=where, expected="one JSON object a line"
        ) from error
    if not isinstance(row, dict):
        raise UserError("not a JSON object", where=where, got=type(row).__name__)
    return row


def _string(where: str, row: dict[str, object], key: str, default: str | None = None) -> str:
    value = row.get(key)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise UserError(
            f"'{key}' is missing" if value is None else f"'{key}' is not a text",
            where=where,
            got=f"the keys {', '.join(row)}" if value is None else repr(value),
            expected='{"audio": "wavs/a.wav", "text": "..."}',
        )
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UserError(
            f"'{key}' holds half of a surrogate pair", where=where, got=ascii(value)[:80]
        )
    return value.strip()


def _without_duplicates(utterances: Iterator[Utterance]) -> Iterator[Utterance]:
    first: dict[str, str] = {}
    for utterance in utterances:
        if utterance.id in first:
            raise UserError(
                f"the id {utterance.id!r} occurs twice",
                where=utterance.where,
                expected=f"ids that differ; the other is at {first[utterance.id]}",
            )
        first[utterance.id] = utterance.where
        yield utterance


class _AudioFinder:
    """Finds the audio file that a manifest's line names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, where: str, name: str) -> Path:
        if not name:
            raise UserError("no audio file named", where=where, expected="an id or a path")
        if _escapes(name):
            raise UserError(
                "the audio path leaves the corpus folder",
                where=where,
                got=repr(name),
                expected=f"a path below {self.folder}",
            )
        found = self.find(name)
        if found is None:
            raise UserError(
                "no such audio file",
                where=where,
                got=repr(name),
                expected=str(self.candidates(name)[0]),
            )
        return found

    def find(self, name: str) -> Path | None:
        """The file that ``name`` stands for, if there is one."""
        exists: Callable[[Path], bool] = Path.is_file
        return next((path for path in self.candidates(name) if exists(path)), None)

    def candidates(self, name: str) -> list[Path]:
        """Where the file may lie: as a path, or as an id in ``wavs`` or beside the manifest."""
        relative = name.replace("\\", "/")
        folders = (self.folder / "wavs", self.folder)
        if relative.lower().endswith(AUDIO_SUFFIXES):
            return [self.folder / relative, self.folder / "wavs" / relative]
        return [folder / (relative + suffix) for folder in folders for suffix in AUDIO_SUFFIXES]

    def name_of(self, audio: Path) -> str:
        """The id: the file's path without ``wavs`` and suffix."""
        parts = audio.relative_to(self.folder).with_suffix("").parts
        return "/".join(parts[1:] if len(parts) > 1 and parts[0] == "wavs" else parts)


def _escapes(name: str) -> bool:
    posix, windows = PurePosixPath(name.replace("\\", "/")), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.anchor) or ".." in posix.parts
