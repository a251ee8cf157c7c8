"""Mel features, computed once and memory-mapped afterwards.

``<cache>/mel-<key>/`` holds the features of one mel definition (the key hashes all of it and the
trimming). Features lie in shards: ``<name>.npy`` float32 [frames, M] and ``<name>.json``, which
lists the content hash and the frames of each audio file. A shard counts once its JSON is there,
so a build that was killed loses at most the shard it was at. Shards are named after what they
hold: two builders at once write equal files, and whoever comes second changes nothing.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from profforce.audio.files import read_audio, trim_silence
from profforce.audio.mel import MelSpectrogram
from profforce.config import MelConfig
from profforce.data.columns import Array, Stored
from profforce.data.content import ContentIndex
from profforce.data.files import write_json
from profforce.data.parallel import map_unordered, num_cpus
from profforce.data.progress import Progress, silent
from profforce.data.shards import ShardReader, Shards
from profforce.errors import UserError

log = logging.getLogger(__name__)

FORMAT = 1
SHARD_UTTERANCES = 64
PARALLEL_FROM = 2000
"""Files from which starting processes (seconds each) pays."""

Mel = npt.NDArray[np.float32]


class Features(Protocol):
    """Mels by position."""

    most_read: int
    """Mels that are worth reading for statistics."""

    @property
    def num_frames(self) -> npt.NDArray[np.int64]:
        """int64, of each mel; the most it may have where silence is trimmed as it is read."""

    @property
    def groups(self) -> Array | None:
        """Number of the file that each lies in, where neighbours are read best together."""

    def __getitem__(self, position: int) -> Mel:
        """float32 [T, M], perhaps a read-only view."""


class ChosenFeatures(Stored):
    """Some of the mels, in the order of ``rows``."""

    def __init__(self, whole: Features, rows: Array) -> None:
        self.whole, self.rows = whole, rows
        self.most_read = whole.most_read
        self.groups = None if whole.groups is None else whole.groups[rows]
        self.num_frames: npt.NDArray[np.int64] = whole.num_frames[rows]
        """int64 [rows]."""

    def __getitem__(self, position: int) -> Mel:
        """See :class:`Features`."""
        return self.whole[int(self.rows[position])]


class MelFeatures(Stored):
    """Mels of a list of audio files, read from the cache; picklable for data workers."""

    most_read = 4096
    groups: Array | None = None

    def __init__(
        self, reader: ShardReader, names: Sequence[str], shards: Array, starts: Array, frames: Array
    ) -> None:
        """Of each file the number of its shard in ``names``, and its first frame there."""
        self.reader, self.names = reader, names
        self.shards, self.starts = shards, starts
        self.num_frames: npt.NDArray[np.int64] = frames
        """int64 [files]."""

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, position: int) -> Mel:
        """float32 [T, M] of one file, a read-only view of the cache."""
        start, frames = int(self.starts[position]), int(self.num_frames[position])
        return self.reader.read(self.names[int(self.shards[position])], start, frames)

    @classmethod
    def of(cls, shards: Shards, digests: Sequence[str]) -> "MelFeatures":
        """Of the files with these contents."""
        numbers: dict[str, int] = {}
        rows = np.empty((len(digests), 3), dtype=np.int64)
        for row, digest in enumerate(digests):
            shard, start, frames = shards[digest]
            rows[row] = numbers.setdefault(shard, len(numbers)), start, frames
        columns = (np.ascontiguousarray(column) for column in rows.T)
        return cls(shards.reader, list(numbers), *columns)


def chunks_of(groups: Array | None, least: int) -> list[int]:
    """First positions of chunks of whole groups of neighbours, at least ``least`` positions each.

    ``groups`` are numbers of the files that positions lie in, None where any order will do; the
    first chunk, at 0, is left out, as is a rest that is too small for one.
    """
    if groups is None or not len(groups):
        return []
    starts = np.flatnonzero(np.diff(groups)) + 1
    firsts, last = [], 0
    for start in starts.tolist():
        if start - last >= least and len(groups) - start >= least:
            firsts.append(start)
            last = start
    return firsts


@dataclass(frozen=True)
class MelReader:
    """Audio file to mel; a picklable callable, so that processes can share the work."""

    mel: MelConfig
    trim_db: float | None

    def __call__(self, path: Path) -> Mel:
        """float32 [T, M] of the file at ``path``, ends trimmed."""
        with _one_thread():
            return self.of(read_audio(path, self.mel.sample_rate))

    def of(self, audio: torch.Tensor) -> Mel:
        """float32 [T, M] of ``audio [N]`` at the mel's rate, ends trimmed."""
        with torch.inference_mode():
            if self.trim_db is not None:
                audio = trim_silence(audio, self.mel.sample_rate, self.trim_db)
            mel: Mel = _spectrogram(*astuple(self.mel))(audio).numpy()
        return mel


@contextmanager
def _one_thread() -> Iterator[None]:
    """An utterance is too small to share; threads would only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@cache
def _spectrogram(*definition: Any) -> MelSpectrogram:
    return MelSpectrogram(MelConfig(*definition))


def build_features(
    files: Sequence[Path],
    mel: MelConfig,
    *,
    trim_db: float | None,
    folder: Path,
    progress: Progress | None = None,
    look: Callable[[int], None] | None = None,
) -> MelFeatures:
    """The features of ``files``; those that the cache lacks are computed and kept.

    ``look`` is called with the position of every file that is new or has changed, before it is
    read. Raises :class:`UserError` when an audio file cannot be read or the cache not be written.
    """
    place = folder / f"mel-{definition_key(mel, trim_db)}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        _describe(place, mel, trim_db)
        index = ContentIndex(place / "files.json")
        shards = Shards(place, mel.num_mels)
        digests = index.digests(files, look)
        missing = {d: files[k] for k, d in enumerate(digests) if d not in shards}
        num_workers = num_cpus() if len(missing) >= PARALLEL_FROM else 1
        reader = MelReader(mel, trim_db)
        _compute(missing, reader, shards, num_workers, progress or silent)
        index.save()
    except OSError as error:
        raise UserError(
            f"cannot write the feature cache ({error.strerror or error})",
            where=folder,
            remedy="free some space or set data.cache to a folder that can be written",
        ) from error
    return MelFeatures.of(shards, digests)


def definition_key(mel: MelConfig, trim_db: float | None) -> str:
    """Short hash of everything that the features depend on beside the audio."""
    text = json.dumps(_definition(mel, trim_db), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _definition(mel: MelConfig, trim_db: float | None) -> dict[str, object]:
    return {"format": FORMAT, "trim_db": trim_db, **asdict(mel)}


def _describe(folder: Path, mel: MelConfig, trim_db: float | None) -> None:
    """Leave the mel definition readable beside the features."""
    path = folder / "mel.json"
    if not path.is_file():
        write_json(path, _definition(mel, trim_db))


def _compute(
    missing: dict[str, Path],
    reader: MelReader,
    shards: Shards,
    num_workers: int,
    progress: Progress,
) -> None:
    """Compute the mels of ``{content hash: file}`` and add them shard by shard."""
    names, paths = list(missing), list(missing.values())
    ready: dict[str, Mel] = {}
    try:
        results = map_unordered(reader, paths, num_workers=num_workers)
        for done, (position, mel) in enumerate(results, 1):
            ready[names[position]] = mel
            if len(ready) >= SHARD_UTTERANCES:
                shards.add(ready)
                ready = {}
            progress("computing mel features", done, len(paths))
    finally:  # also after Ctrl-C or an unreadable file: what is done is done
        shards.add(ready)
    if paths:
        log.info("computed the mel features of %d audio files", len(paths))
