"""The corpus."""

from dataclasses import dataclass
from enum import StrEnum

from profforce.config.checks import in_range

MISSING_TEXT = "???"


class DataKind(StrEnum):
    """Which recipe prepares the corpus."""

    demo = "demo"
    synthetic = "synthetic"
    asterisk = "asterisk"
    ljspeech = "ljspeech"
    custom = "custom"


@dataclass
class DataConfig:
    """A corpus: a folder with ``metadata.csv`` or ``manifest.jsonl`` and audio files."""

    kind: DataKind = DataKind.custom
    root: str = MISSING_TEXT
    """Folder of the corpus: read by training, filled by ``profforce data prepare``."""
    source: str | None = None
    """Where prepare finds the raw material (folder, .deb or archive); its default is per recipe."""
    cache: str | None = None
    """Folder of the feature cache; ``<root>/features`` when unset."""
    shards: str | None = None
    """Folder or pattern of tar files to read utterances from instead of ``root``: ``KEY.wav`` (or
    flac, ogg, mp3) beside ``KEY.txt`` or ``KEY.json``. Mels are computed as they are read."""
    shuffle_buffer: int = 20_000
    """With ``shards``: utterances, of neighbouring tar files, that are mixed at a time."""
    num_utterances: int | None = None
    """Limit on the utterances made or used; all when unset."""
    variation: float = 0.0
    """Of the synthetic corpus, 0 to 1: how differently its utterances are said."""
    valid_fraction: float = 0.05
    """Share of texts held out; utterances with the same text stay on one side."""
    min_seconds: float = 0.2
    max_seconds: float = 20.0
    trim_db: float | None = 40.0
    """Trim leading and trailing silence this far below the peak; null keeps it."""
    num_workers: int = 0

    def __post_init__(self) -> None:
        in_range("data", self, ("num_utterances", "shuffle_buffer"), 1)
        in_range("data", self, ("variation",), 0, 1)
        in_range("data", self, ("valid_fraction",), 0, 1, above=True, below=True)
        in_range("data", self, ("min_seconds", "num_workers"), 0)
        in_range("data", self, ("max_seconds",), 0, above=True, unlimited=True)
        in_range("data", self, ("trim_db",), 0, above=True)
        if self.max_seconds <= self.min_seconds:
            raise ValueError(
                f"data.max_seconds must be > data.min_seconds = {self.min_seconds:g}, "
                f"got {self.max_seconds:g}"
            )
