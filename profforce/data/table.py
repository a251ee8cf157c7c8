"""The utterances of a corpus in columns: a few dozen bytes each beside their texts, no objects.

What a column holds is read when an utterance is asked for; :class:`Utterance` is then made anew.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar, overload

import numpy as np

from profforce.data.check import manifest_kinds
from profforce.data.check.kinds import DefectError
from profforce.data.check.table import digest, repeated
from profforce.data.columns import Array, Column, RaggedColumn, Stored, TextColumn, Texts, mapped
from profforce.data.manifest import Utterance

T = TypeVar("T")

CHUNK = 4096
"""Utterances that are looked at together."""
LARGE = 200_000
"""Utterances from which the columns lie in files."""
TEXTS = ("id", "audio", "text", "spoken")
NUMBERS = {"speaker": np.int32, "line": np.int64}


class UtteranceTable(Stored, Sequence[Utterance]):
    """All utterances of a corpus, in the order of its manifest."""

    def __init__(
        self, columns: Mapping[str, Array], speakers: Sequence[str], base: Path, manifest: Path
    ) -> None:
        """``columns`` as :class:`TableBuilder` names them; audio is relative to ``base``."""
        self.texts = {name: Texts(*text_parts(columns, name)) for name in TEXTS}
        self.numbers = {name: columns[name] for name in NUMBERS}
        self.speakers = tuple(speakers)
        """Names, the position being the number in the column; -1 stands for none."""
        self.base, self.manifest = base, manifest

    def __len__(self) -> int:
        return len(self.numbers["line"])

    @overload
    def __getitem__(self, position: int) -> Utterance: ...

    @overload
    def __getitem__(self, position: slice) -> list[Utterance]: ...

    def __getitem__(self, position: int | slice) -> "Utterance | list[Utterance]":
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        text, speaker = self.texts["text"][position], int(self.numbers["speaker"][position])
        return Utterance(
            id=self.texts["id"][position],
            audio=self.audio(position),
            text=text,
            spoken=self.texts["spoken"][position] or text,
            speaker=None if speaker < 0 else self.speakers[speaker],
            where=self.where(position),
        )

    def audio(self, position: int) -> Path:
        """The audio file of one utterance."""
        return Path(self.base, self.texts["audio"][position])

    def spoken(self, position: int) -> str:
        """What is read aloud of one utterance."""
        return self.texts["spoken"][position] or self.texts["text"][position]

    def where(self, position: int) -> str:
        """``file:line``, or the audio where there is no manifest."""
        line = int(self.numbers["line"][position])
        return f"{self.manifest}:{line}" if line else str(self.audio(position))


class AudioPaths(Sequence[Path]):
    """The audio files of a table."""

    def __init__(self, table: UtteranceTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, position: int) -> Path: ...

    @overload
    def __getitem__(self, position: slice) -> list[Path]: ...

    def __getitem__(self, position: int | slice) -> "Path | list[Path]":
        if isinstance(position, slice):
            return [self[k] for k in range(*position.indices(len(self)))]
        return self.table.audio(range(len(self))[position])


class TableBuilder:
    """Takes utterances in and keeps them in columns; a large table goes to files in ``place``."""

    def __init__(self, base: Path, manifest: Path, place: Path) -> None:
        self.base, self.manifest, self.place = base, manifest, place
        self.texts = {name: TextColumn() for name in TEXTS}
        self.numbers = {name: Column(dtype) for name, dtype in NUMBERS.items()}
        self.speakers: dict[str, int] = {}
        self.in_files = False
        self._count = 0

    def extend(self, utterances: Sequence[Utterance]) -> None:
        """Add a few thousand utterances."""
        self._count += len(utterances)
        if self._count >= LARGE and not self.in_files:
            self._to_files()
        prefix, lines = f"{self.base}{os.sep}", f"{self.manifest}:"
        places = [u.where for u in utterances]
        self.texts["id"].extend([u.id for u in utterances])
        self.texts["audio"].extend([str(u.audio).removeprefix(prefix) for u in utterances])
        self.texts["text"].extend([u.text for u in utterances])
        self.texts["spoken"].extend(["" if u.spoken == u.text else u.spoken for u in utterances])
        self.numbers["speaker"].extend([self._speaker(u.speaker) for u in utterances])
        self.numbers["line"].extend(
            [int(place.removeprefix(lines)) if place.startswith(lines) else 0 for place in places]
        )

    def finish(self) -> UtteranceTable:
        """The table, at least one utterance with ids that differ; a :class:`DefectError` if not."""
        columns = {f"{name}.{part}": c for name, t in self.texts.items() for part, c in parts(t)}
        arrays = closed({**columns, **self.numbers}, self.place if self.in_files else None)
        table = UtteranceTable(arrays, tuple(self.speakers), self.base, self.manifest)
        if not len(table):
            raise DefectError(manifest_kinds.MANIFEST_EMPTY, where=self.manifest)
        refuse_same_ids(table)
        return table

    def _speaker(self, name: str | None) -> int:
        return -1 if name is None else self.speakers.setdefault(name, len(self.speakers))

    def _to_files(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts.items():
            for part, column in parts(text):
                column.to_file(self.place / f"{name}.{part}")
        for name, column in self.numbers.items():
            column.to_file(self.place / name)
        self.in_files = True


def parts(column: TextColumn | RaggedColumn) -> Iterator[tuple[str, Column]]:
    """The columns that ``column`` consists of, by name."""
    yield from (("content", column.content), ("ends", column.ends))


def closed(columns: Mapping[str, Column], place: Path | None) -> dict[str, Array]:
    """The numbers of finished columns, mapped where they lie in the files of ``place``."""
    for column in columns.values():
        column.close()
    if place is None:
        return {name: column.array() for name, column in columns.items()}
    return {name: mapped(place / name, column.dtype) for name, column in columns.items()}


def text_parts(columns: Mapping[str, Array], name: str) -> tuple[Array, Array]:
    """Content and ends of a column of texts or rows."""
    return columns[f"{name}.content"], columns[f"{name}.ends"]


def refuse_same_ids(table: UtteranceTable) -> None:
    """Raise for the first id that occurs twice; digests of 64 bits tell where to look."""
    ids = table.texts["id"]
    digests = np.fromiter((digest(name) for name in ids), dtype=np.uint64, count=len(ids))
    for later, first in repeated(digests):
        if ids[later] == ids[first]:
            raise DefectError(
                manifest_kinds.ID_DUPLICATE,
                where=table.where(later),
                what=f"the id {ids[later]!r} occurs twice",
                expected=f"ids that differ; the other is at {table.where(first)}",
            )


def build_table(
    utterances: Iterable[Utterance], base: Path, manifest: Path, place: Path, most: int | None
) -> UtteranceTable:
    """The first ``most`` of ``utterances``, or all; the others are looked at, too."""
    builder = TableBuilder(base, manifest, place)
    left = iter(utterances)
    for chunk in chunked(left if most is None else islice(left, most)):
        builder.extend(chunk)
    for _ in left:
        pass
    return builder.finish()


def chunked(items: Iterable[T]) -> Iterator[list[T]]:
    """``items`` in lists of :data:`CHUNK`."""
    left = iter(items)
    while chunk := list(islice(left, CHUNK)):
        yield chunk
