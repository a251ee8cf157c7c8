"""Tar files as the source of a corpus: mels are computed as they are read, nothing is unpacked.

T mel frames, M mel channels.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from profforce.audio.files import decode_audio
from profforce.config import DataConfig, MelConfig
from profforce.data.assemble import refuse_sound
from profforce.data.columns import Array, Column, Stored, Texts
from profforce.data.features import Features, Mel, MelReader
from profforce.data.manifest import Utterance
from profforce.data.progress import Progress
from profforce.data.table import UtteranceTable
from profforce.data.webdata import found_in, tar_files
from profforce.errors import UserError

log = logging.getLogger(__name__)

OPEN_FILES = 64
"""Tar files held open at once."""
PLACES = {"tar": np.int32, "offset": np.int64, "size": np.int64, "frames": np.int64}


Stamp = tuple[int, int]
"""Size in bytes and time of modification in nanoseconds."""


def stamp_of(found: os.stat_result) -> Stamp:
    """By which one sees that a file was changed."""
    return found.st_size, found.st_mtime_ns


class TarFeatures(Stored):
    """Mels of audio in tar files, computed as they are asked for; picklable for data workers."""

    most_read = 512

    def __init__(
        self,
        base: Path,
        tars: Sequence[str],
        stamps: Sequence[Stamp],
        audio: Texts,
        places: dict[str, Array],
        reader: MelReader,
    ) -> None:
        """``places``: columns as in :data:`PLACES`; ``audio``: names for messages."""
        self.base, self.tars, self.audio = base, list(tars), audio
        self.stamps = list(stamps)
        """Of each tar, when it was searched."""
        self.groups: Array = places["tar"]
        """The tar that each lies in."""
        self.offsets, self.sizes = places["offset"], places["size"]
        self.num_frames: npt.NDArray[np.int64] = places["frames"]
        """int64; silence at the ends is not trimmed yet, so this is the most there may be."""
        self.reader = reader
        self._files: OrderedDict[int, BinaryIO] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_files": OrderedDict()}

    def __getitem__(self, position: int) -> Mel:
        """float32 [T, M]; raises :class:`UserError` naming file and member."""
        where = self.base / self.audio[position]
        size = int(self.sizes[position])
        raw = self._read(int(self.groups[position]), int(self.offsets[position]), size)
        mel = self.reader.of(decode_audio(raw, where, self.reader.mel.sample_rate))
        refuse_sound(str(where), mel, 1, self.reader.mel)
        return mel

    def _read(self, tar: int, offset: int, size: int) -> bytes:
        path = self.base / self.tars[tar]
        try:
            if tar not in self._files:
                self._files[tar] = path.open("rb")
                if len(self._files) > OPEN_FILES:
                    self._files.popitem(last=False)[1].close()
            file = self._files[tar]
            if stamp_of(os.fstat(file.fileno())) != self.stamps[tar]:
                raise UserError(
                    "the tar file has changed since it was searched",
                    where=path,
                    remedy="leave it as it is while it is trained from; start or resume again",
                )
            file.seek(offset)
            return file.read(size)
        except OSError as error:
            raise UserError(f"cannot read the tar file ({error.strerror})", where=path) from error


class TarSource:
    """See :class:`profforce.data.assemble.Source`."""

    reads_ahead = False

    def __init__(self, data: DataConfig, mel: MelConfig) -> None:
        """Raises :class:`UserError` if there is no tar file at ``data.shards``."""
        assert data.shards is not None
        self.files = tar_files(data.shards)
        self.stamps = [stamp_of(tar.stat()) for tar in self.files]
        self.base = Path(os.path.commonpath([tar.parent for tar in self.files]))
        self.manifest = self.base
        self.store = Path(data.cache).expanduser() if data.cache else self.base / "features"
        self.reader = MelReader(mel, data.trim_db)
        self._columns = {name: Column(dtype) for name, dtype in PLACES.items()}

    def utterances(self) -> Iterator[Utterance]:
        """See :class:`Source`; where each lies is noted for :meth:`features`."""
        self._columns = {name: Column(dtype) for name, dtype in PLACES.items()}
        mel = self.reader.mel
        log.info("looking through %d tar files in %s", len(self.files), self.base)
        for number, tar in enumerate(self.files):
            places = []
            for found in found_in(tar, mel.sample_rate):
                row, audio = found.row, found.audio
                frames = found.num_samples // mel.hop_length
                places.append((number, audio.offset, audio.size, frames))
                path = tar / audio.name
                yield Utterance(row.id, path, row.text, row.spoken, row.speaker, row.where)
            for name, column in zip(PLACES, zip(*places, strict=True), strict=False):
                self._columns[name].extend(column)

    def features(self, table: UtteranceTable, progress: Progress | None) -> Features:
        """See :class:`Source`."""
        places = {name: column.array()[: len(table)] for name, column in self._columns.items()}
        return self._of(self._names(), table, places)

    def state(self) -> list[tuple[str, int, int]]:
        """See :class:`Source`."""
        rows = zip(self.files, self.stamps, strict=True)
        return [(str(tar.resolve()), size, time) for tar, (size, time) in rows]

    def columns(self, features: Features) -> tuple[dict[str, Array], Sequence[str]]:
        """See :class:`Source`."""
        assert isinstance(features, TarFeatures)
        columns = (features.groups, features.offsets, features.sizes, features.num_frames)
        return dict(zip(PLACES, columns, strict=True)), self._names()

    def reopened(
        self, columns: dict[str, Array], names: Sequence[str], table: UtteranceTable
    ) -> Features | None:
        """See :class:`Source`."""
        places = {name: columns[name] for name in PLACES}
        return self._of(names, table, places)

    def _of(
        self, names: Sequence[str], table: UtteranceTable, places: dict[str, Array]
    ) -> TarFeatures:
        audio = table.texts["audio"]
        return TarFeatures(self.base, names, self.stamps, audio, places, self.reader)

    def _names(self) -> list[str]:
        return [tar.relative_to(self.base).as_posix() for tar in self.files]
