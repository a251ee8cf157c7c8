"""Memory-mapped shards of features. A shard is a ``.npy`` and the ``.json`` that lists it."""

import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profforce.data.files import aside, write_json
from profforce.disk import told_by_system

log = logging.getLogger(__name__)

STALE_S = 3600.0
"""Age from which a file left aside is the leftover of a killed builder."""

Mel = npt.NDArray[np.float32]


MAPS = 1024
"""Shards held open at once; a process may have some ten thousand maps."""


class Span(NamedTuple):
    """Where an utterance's frames lie."""

    shard: str
    start: int
    frames: int


class ShardReader:
    """Reads from the shards of one folder. Picklable; maps are reopened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: OrderedDict[str, Mel] = OrderedDict()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_maps": OrderedDict()}

    def read(self, shard: str, start: int, frames: int) -> Mel:
        """float32 [T, M], a read-only view."""
        if shard not in self._maps:
            self._maps[shard] = np.load(self.path(shard), mmap_mode="r")
            if len(self._maps) > MAPS:
                self._maps.popitem(last=False)
        return self._maps[shard][start : start + frames]

    def path(self, shard: str) -> Path:
        """The file with the frames of ``shard``."""
        return self.folder / f"{shard}.npy"


class Shards:
    """The shards of one folder, by content hash of the audio."""

    def __init__(self, folder: Path, num_mels: int) -> None:
        self.folder = folder
        self.num_mels = num_mels
        self.reader = ShardReader(folder)
        self._spans: dict[str, Span] = {}
        self._remove_leftovers()
        for listing in sorted(folder.glob("shard-*.json")):
            self._load(listing)

    def __contains__(self, digest: str) -> bool:
        return digest in self._spans

    def __getitem__(self, digest: str) -> Span:
        return self._spans[digest]

    def add(self, mels: Mapping[str, Mel]) -> None:
        """Write ``{content hash: [T, M]}`` as one shard; nothing for nothing."""
        if not mels:
            return
        digests = sorted(mels)
        name = "shard-" + hashlib.sha256("".join(digests).encode()).hexdigest()[:16]
        frames = [len(mels[digest]) for digest in digests]
        if not self._is_whole(name, sum(frames)):
            self._write(name, np.concatenate([mels[digest] for digest in digests]))
        rows = list(zip(digests, frames, strict=True))
        write_json(self.folder / f"{name}.json", {"rows": rows})
        self._register(name, rows)

    def _write(self, name: str, data: Mel) -> None:
        path = self.reader.path(name)
        part = aside(path)
        try:
            with told_by_system(part), part.open("wb") as file:
                np.save(file, data)
            part.replace(path)
        except PermissionError:  # Windows: another builder was first and has it open
            if not self._is_whole(name, len(data)):
                raise
        finally:
            part.unlink(missing_ok=True)

    def _load(self, listing: Path) -> None:
        name = listing.stem
        try:
            rows = [
                (str(digest), int(frames))
                for digest, frames in json.loads(listing.read_text(encoding="utf-8"))["rows"]
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged (%s); its features are computed again", listing, error)
            return
        if not self._is_whole(name, sum(frames for _, frames in rows)):
            log.warning("%s is damaged; its features are computed again", self.reader.path(name))
            return
        self._register(name, rows)

    def _register(self, name: str, rows: list[tuple[str, int]]) -> None:
        start = 0
        for digest, frames in rows:
            self._spans.setdefault(digest, Span(name, start, frames))
            start += frames

    def _is_whole(self, name: str, frames: int) -> bool:
        """Whether the data file holds ``frames`` frames; numpy refuses to map a cut one."""
        try:
            data = np.load(self.reader.path(name), mmap_mode="r")
        except (OSError, ValueError, EOFError):
            return False
        return bool(data.shape == (frames, self.num_mels) and data.dtype == np.float32)

    def _remove_leftovers(self) -> None:
        for part in self.folder.glob(".*.part"):
            try:
                if time.time() - part.stat().st_mtime > STALE_S:
                    part.unlink(missing_ok=True)
            except OSError:  # another builder's, just renamed
                continue
