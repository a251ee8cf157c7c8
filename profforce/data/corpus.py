"""A corpus ready for training: tokenized, split by text, its features cached.

T mel frames, M mel channels, S symbols.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.check import audio_kinds, manifest_kinds, text_kinds
from profforce.data.check.header import header_defect
from profforce.data.check.kinds import DefectError
from profforce.data.check.sides import is_valid_text
from profforce.data.check.texts import is_speakable
from profforce.data.dataset import MelDataset
from profforce.data.features import MelFeatures, build_features
from profforce.data.manifest import (
    METADATA,
    Utterance,
    corpus_folder,
    corpus_root,
    read_manifest,
)
from profforce.data.progress import Progress
from profforce.errors import UserError
from profforce.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SILENT_MARGIN = 1e-3
"""Above the log of the floor, for rounding: frames at the floor hold no sound."""

__all__ = ["Corpus", "CorpusReport", "UnknownSymbol", "corpus_root", "is_valid_text", "load_corpus"]


@dataclass(frozen=True)
class UnknownSymbol:
    """A symbol outside the alphabet: how often, and where first."""

    symbol: str
    count: int
    where: str


@dataclass(frozen=True)
class CorpusReport:
    """What was found when the corpus was read."""

    num_train: int
    num_valid: int
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason to utterances left out."""
    unknown_symbols: tuple[UnknownSymbol, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Both sides of a corpus and what a model of it has to know."""

    train: MelDataset
    valid: MelDataset
    tokenizer: Tokenizer
    speakers: tuple[str, ...]
    """Names, the position being the number; empty for a corpus without speakers."""
    mel: MelConfig
    report: CorpusReport

    def fingerprint(self) -> str:
        """Changes with every id, text and length, and with the side that an utterance is on."""
        digest = hashlib.sha256()
        for side in (self.train, self.valid):
            for utterance, frames in zip(side.utterances, side.num_frames.tolist(), strict=True):
                digest.update(f"{utterance.id}\0{utterance.text}\0{frames}\n".encode())
            digest.update(b"\0")
        return digest.hexdigest()[:16]


def load_corpus(
    data: DataConfig, text: TextConfig, mel: MelConfig, progress: Progress | None = None
) -> Corpus:
    """Read the corpus at ``data.root``; features that are not cached yet are computed.

    Raises :class:`UserError` for whatever is wrong with the corpus.
    """
    root = corpus_root(data)
    folder = corpus_folder(root)
    if not folder.is_dir() or (data.kind is not DataKind.custom and not _is_prepared(folder)):
        raise UserError(
            "no corpus here",
            where=folder,
            expected=f"a folder with {METADATA} or manifest.jsonl",
            remedy="check data.root"
            if data.kind is DataKind.custom
            else f"run: profforce data prepare {data.kind} data.root={data.root}",
        )
    utterances = read_manifest(folder)[: data.num_utterances]
    _refuse_headers(utterances, mel.sample_rate)
    features = build_features(
        [utterance.audio for utterance in utterances],
        mel,
        trim_db=data.trim_db,
        folder=Path(data.cache).expanduser() if data.cache else root / "features",
        progress=progress,
    )
    return _assemble(data, utterances, features, Tokenizer(text), mel)


def _is_prepared(folder: Path) -> bool:
    return (folder / METADATA).is_file() or (folder / "manifest.jsonl").is_file()


def _assemble(
    data: DataConfig,
    utterances: list[Utterance],
    features: MelFeatures,
    tokenizer: Tokenizer,
    mel: MelConfig,
) -> Corpus:
    seconds = features.num_frames * (mel.hop_length / mel.sample_rate)
    kept, skipped = _within_limits(data, seconds)
    unknown = _unknown_symbols(utterances, tokenizer)
    symbols = _encode([utterances[k] for k in kept], tokenizer)
    for k, numbers in zip(kept, symbols, strict=True):
        _refuse_sound(utterances[k], features[k], len(numbers) - 1, mel)
    speakers = _speakers(utterances)
    sides: tuple[list[int], list[int]] = ([], [])
    for row, k in enumerate(kept):
        sides[is_valid_text(utterances[k].spoken, data.valid_fraction)].append(row)
    _check_sides(data, sides, skipped)
    train, valid = (
        MelDataset(
            [utterances[kept[row]] for row in side],
            [symbols[row] for row in side],
            features.select([kept[row] for row in side]),
            speakers,
        )
        for side in sides
    )
    report = CorpusReport(len(train), len(valid), float(seconds[kept].sum()), skipped, unknown)
    _log(report)
    return Corpus(train, valid, tokenizer, speakers, mel, report)


def _within_limits(
    data: DataConfig, seconds: npt.NDArray[np.floating[Any]]
) -> tuple[list[int], dict[str, int]]:
    short = seconds < max(data.min_seconds, np.finfo(np.float64).tiny)
    long = seconds > data.max_seconds
    reasons = {
        f"shorter than data.min_seconds={data.min_seconds:g}": int(short.sum()),
        f"longer than data.max_seconds={data.max_seconds:g}": int(long.sum()),
    }
    kept = np.flatnonzero(~(short | long)).tolist()
    return kept, {reason: count for reason, count in reasons.items() if count}


def _refuse_headers(utterances: Sequence[Utterance], sample_rate: int) -> None:
    """Name a file that is cut or of an odd rate; reads no more than the start of each."""
    for utterance in utterances:
        found = header_defect(utterance.audio, sample_rate)
        if found is not None:
            where = f"{utterance.where}: {utterance.audio}"
            raise DefectError(found[0], where=where, got=found[1])


def _refuse_sound(
    utterance: Utterance, features: npt.NDArray[np.float32], num_symbols: int, mel: MelConfig
) -> None:
    """Name a line whose audio is silent or holds less than a frame a symbol.

    ``features [T, M]``: only the middle frame is read unless that one is silent.
    """
    where = f"{utterance.where}: {utterance.audio}"
    silence = np.log(mel.log_floor) + SILENT_MARGIN
    if features[len(features) // 2].max() <= silence and features.max() <= silence:
        raise DefectError(audio_kinds.AUDIO_SILENT, where=where)
    if len(features) < num_symbols:
        got = f"{num_symbols} symbols, {len(features)} frames"
        raise DefectError(text_kinds.TEXT_TOO_LONG, where=where, got=got)


def _unknown_symbols(
    utterances: Sequence[Utterance], tokenizer: Tokenizer
) -> tuple[UnknownSymbol, ...]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    alphabet = set(tokenizer.symbols)
    spoken = tokenizer.normalize_many([utterance.spoken for utterance in utterances])
    for utterance, line in zip(utterances, spoken, strict=True):
        for symbol in line:
            if symbol not in alphabet:
                counts[symbol] += 1
                first.setdefault(symbol, utterance.where)
    return tuple(UnknownSymbol(s, count, first[s]) for s, count in counts.most_common())


def _encode(utterances: Sequence[Utterance], tokenizer: Tokenizer) -> list[torch.Tensor]:
    texts = [utterance.spoken for utterance in utterances]
    try:
        numbers = tokenizer.encode_many(texts, drop_unknown=True)
    except UserError:
        alphabet = set(tokenizer.symbols)
        for utterance, line in zip(utterances, tokenizer.normalize_many(texts), strict=True):
            if not is_speakable(line, alphabet):  # name the line
                got = repr(utterance.spoken[:60])
                where = utterance.where
                raise DefectError(text_kinds.TEXT_UNSPEAKABLE, where=where, got=got) from None
        raise
    return [torch.tensor(row) for row in numbers]


def _speakers(utterances: Sequence[Utterance]) -> tuple[str, ...]:
    names = {utterance.speaker for utterance in utterances}
    if None in names and len(names) > 1:
        where = next(u.where for u in utterances if u.speaker is None)
        raise DefectError(manifest_kinds.SPEAKER_MISSING, where=where)
    return tuple(sorted(name for name in names if name is not None))


def _check_sides(
    data: DataConfig, sides: tuple[list[int], list[int]], skipped: dict[str, int]
) -> None:
    kinds = (manifest_kinds.SPLIT_NO_TRAIN, manifest_kinds.SPLIT_NO_VALID)
    for kind, side in zip(kinds, sides, strict=True):
        if not side:
            left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise DefectError(
                kind,
                where=data.root,
                got=f"{len(sides[0])} for training, {len(sides[1])} for validation"
                + (f", skipped {left_out}" if left_out else ""),
            )


def _log(report: CorpusReport) -> None:
    log.info(
        "corpus: %d utterances for training, %d for validation, %.1f minutes",
        report.num_train,
        report.num_valid,
        report.seconds / 60,
    )
    for reason, count in report.skipped.items():
        log.warning("skipped %d utterances %s", count, reason)
    if report.unknown_symbols:
        log.warning(
            "symbols outside the alphabet are left out: %s",
            ", ".join(
                f"{row.symbol!r} (U+{ord(row.symbol):04X}) x{row.count}, first at {row.where}"
                for row in report.unknown_symbols
            ),
        )
