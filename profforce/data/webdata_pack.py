"""Pack a corpus into tar files of samples, in a random order that is the same everywhere."""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profforce.config import DataConfig, MelConfig
from profforce.data.manifest import Utterance
from profforce.data.manifest_source import ManifestSource
from profforce.data.progress import Progress, silent
from profforce.data.stored import place_for
from profforce.data.table import build_table
from profforce.errors import UserError


@dataclass(frozen=True)
class PackReport:
    """What was written."""

    folder: Path
    num_utterances: int
    num_shards: int
    mebibytes: float


def pack(
    data: DataConfig,
    mel: MelConfig,
    out: Path,
    *,
    samples: int,
    seed: int,
    progress: Progress = silent,
) -> PackReport:
    """Write the corpus at ``data.root`` as ``out/shard-NNNNNN.tar``, ``samples`` in each.

    Audio is copied as it is; id, texts and speaker go into ``KEY.json``. The tar files get their
    names when all are written, so that a folder holds a whole corpus or none. Equal corpora give
    equal bytes. Raises :class:`UserError` for a defect of the manifest or a used folder.
    """
    if samples < 1:
        raise UserError("a tar file needs samples", where="--samples", got=samples, expected=">= 1")
    if any(out.glob("*.tar")):
        raise UserError(
            "holds tar files already", where=out, remedy="name another folder, or remove them"
        )
    source = ManifestSource(data, mel)
    out.mkdir(parents=True, exist_ok=True)
    with place_for(out / "corpus") as place:
        table = build_table(
            source.utterances(), source.base, source.manifest, place, data.num_utterances
        )
        order = np.random.default_rng(seed).permutation(len(table)).tolist()
        finished, size = [], 0
        for first in range(0, len(order), samples):
            target = out / f"shard-{first // samples:06d}.tar"
            with _archive(target.with_name(f".{target.name}.part")) as archive:
                for number, row in enumerate(order[first : first + samples], first):
                    _add(archive, f"{number:08d}", table[row])
            progress("packing", min(first + samples, len(order)), len(order))
            finished.append(target)
        for target in finished:
            part = target.with_name(f".{target.name}.part")
            size += part.stat().st_size
            part.replace(target)
    return PackReport(out, len(order), len(finished), size / 2**20)


@contextmanager
def _archive(path: Path) -> Iterator[tarfile.TarFile]:
    """A tar being written, removed if that fails."""
    try:
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            yield archive
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _add(archive: tarfile.TarFile, key: str, utterance: Utterance) -> None:
    described = {"id": utterance.id, "text": utterance.text}
    if utterance.spoken != utterance.text:
        described["normalized_text"] = utterance.spoken
    if utterance.speaker is not None:
        described["speaker"] = utterance.speaker
    text = json.dumps(described, ensure_ascii=False).encode()
    info = tarfile.TarInfo(f"{key}.json")
    info.size = len(text)
    archive.addfile(info, io.BytesIO(text))
    try:
        with utterance.audio.open("rb") as file:
            info = tarfile.TarInfo(key + utterance.audio.suffix.lower())
            info.size = utterance.audio.stat().st_size
            archive.addfile(info, file)
    except FileNotFoundError as error:
        raise UserError(
            "no such audio file", where=f"{utterance.where}: {utterance.audio}"
        ) from error
