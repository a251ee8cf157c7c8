"""Pack a corpus into tar files of samples, in a random order that is the same everywhere."""

import io
import json
import tarfile
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
    _refuse_used(out)
    source = ManifestSource(data, mel)
    out.mkdir(parents=True, exist_ok=True)
    with place_for(out / "corpus") as place:
        place.mkdir()
        table = build_table(
            source.utterances(), source.base, source.manifest, place, data.num_utterances
        )
        order = np.random.default_rng(seed).permutation(len(table)).tolist()
        finished = []
        for first in range(0, len(order), samples):
            part = place / f"shard-{first // samples:06d}.tar"
            with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as archive:
                for number, row in enumerate(order[first : first + samples], first):
                    _add(archive, f"{number:08d}", table[row])
            progress("packing", min(first + samples, len(order)), len(order))
            finished.append(part)
        size = sum(part.stat().st_size for part in finished)
        _refuse_used(out)  # another process may have packed at the same time
        for part in finished:
            part.replace(out / part.name)
    return PackReport(out, len(order), len(finished), size / 2**20)


def _refuse_used(out: Path) -> None:
    if any(out.glob("*.tar")):
        raise UserError(
            "holds tar files already", where=out, remedy="name another folder, or remove them"
        )


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
    content = _audio(utterance)
    info = tarfile.TarInfo(key + utterance.audio.suffix.lower())
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _audio(utterance: Utterance) -> bytes:
    """Whole, so that a file that changes meanwhile makes no false tar."""
    where = f"{utterance.where}: {utterance.audio}"
    try:
        return utterance.audio.read_bytes()
    except FileNotFoundError as error:
        raise UserError("no such audio file", where=where) from error
    except OSError as error:
        raise UserError("cannot read the audio file", where=where, got=error.strerror) from error
