"""A manifest with audio files as the source of a corpus: mels are cached beside it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from profforce.config import DataConfig, DataKind, MelConfig
from profforce.data.check.header import header_defect
from profforce.data.check.kinds import DefectError
from profforce.data.columns import Array
from profforce.data.features import Features, MelFeatures, build_features
from profforce.data.manifest import (
    MANIFEST,
    METADATA,
    Utterance,
    corpus_folder,
    corpus_root,
    manifest_path,
    manifest_utterances,
)
from profforce.data.progress import Progress
from profforce.data.shards import ShardReader
from profforce.data.table import AudioPaths, UtteranceTable
from profforce.errors import UserError


class ManifestSource:
    """See :class:`profforce.data.assemble.Source`."""

    reads_ahead = True

    def __init__(self, data: DataConfig, mel: MelConfig) -> None:
        """Raises :class:`UserError` if there is no corpus at ``data.root``."""
        root = corpus_root(data)
        self.base = corpus_folder(root)
        if not self.base.is_dir() or (data.kind is not DataKind.custom and not self._is_prepared()):
            raise UserError(
                "no corpus here",
                where=self.base,
                expected=f"a folder with {METADATA} or {MANIFEST}",
                remedy="check data.root"
                if data.kind is DataKind.custom
                else f"run: profforce data prepare {data.kind} data.root={data.root}",
            )
        self.manifest = manifest_path(self.base)
        self.store = Path(data.cache).expanduser() if data.cache else root / "features"
        self.mel, self.trim_db = mel, data.trim_db

    def utterances(self) -> Iterator[Utterance]:
        """See :class:`Source`."""
        return manifest_utterances(self.manifest)

    def features(self, table: UtteranceTable, progress: Progress | None) -> Features:
        """Those that the cache lacks are computed and kept."""

        def look(position: int) -> None:
            """Name a file that is cut or of an odd rate; reads no more than its start."""
            audio = table.audio(position)
            found = header_defect(audio, self.mel.sample_rate)
            if found is not None:
                where = f"{table.where(position)}: {audio}"
                raise DefectError(found[0], where=where, got=found[1])

        return build_features(
            AudioPaths(table),
            self.mel,
            trim_db=self.trim_db,
            folder=self.store,
            progress=progress,
            look=look,
        )

    def state(self) -> list[tuple[str, int, int]]:
        """See :class:`Source`."""
        stat = self.manifest.stat()
        return [(str(self.manifest.resolve()), stat.st_size, stat.st_mtime_ns)]

    def columns(self, features: Features) -> tuple[dict[str, Array], Sequence[str]]:
        """See :class:`Source`."""
        assert isinstance(features, MelFeatures)
        places = {"shard": features.shards, "start": features.starts, "frames": features.num_frames}
        return places, [str(features.reader.folder), *features.names]

    def reopened(
        self, columns: dict[str, Array], names: Sequence[str], table: UtteranceTable
    ) -> Features | None:
        """See :class:`Source`."""
        folder, *shards = names
        reader = ShardReader(Path(folder))
        if not all(reader.path(shard).is_file() for shard in shards):
            return None
        return MelFeatures(reader, shards, columns["shard"], columns["start"], columns["frames"])

    def _is_prepared(self) -> bool:
        return any((self.base / name).is_file() for name in (METADATA, MANIFEST))
