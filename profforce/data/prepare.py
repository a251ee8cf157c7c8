"""Make a corpus ready: run its recipe, cache the features, say what is there."""

import importlib
from dataclasses import dataclass
from pathlib import Path

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.corpus import CorpusReport, UnknownSymbol, corpus_root, load_corpus
from profforce.data.progress import Progress

RECIPES = {
    kind: f"profforce.data.recipes.{kind}" for kind in DataKind if kind is not DataKind.custom
}
"""Module of each recipe; it has ``make(data, progress)``. A custom corpus has none."""


@dataclass(frozen=True)
class PrepareReport:
    """Summary of a prepared corpus."""

    kind: DataKind
    root: Path
    num_train: int
    num_valid: int
    minutes: float
    skipped: dict[str, int]
    """Reason to utterances left out."""
    unknown_symbols: tuple[UnknownSymbol, ...]
    """Symbols outside the alphabet, the most frequent first."""
    speakers: tuple[str, ...]

    @property
    def num_utterances(self) -> int:
        """Utterances that training and validation use."""
        return self.num_train + self.num_valid


def prepare(
    data: DataConfig, text: TextConfig, mel: MelConfig, progress: Progress | None = None
) -> PrepareReport:
    """Make the corpus at ``data.root`` by its recipe and cache its features.

    May be run again at any time: what is there and whole is kept. Raises :class:`UserError`
    for whatever is missing or wrong.
    """
    root = corpus_root(data)
    if data.kind in RECIPES:
        importlib.import_module(RECIPES[data.kind]).make(data, progress)
    corpus = load_corpus(data, text, mel, progress)
    report: CorpusReport = corpus.report
    return PrepareReport(
        kind=data.kind,
        root=root,
        num_train=report.num_train,
        num_valid=report.num_valid,
        minutes=report.seconds / 60,
        skipped=report.skipped,
        unknown_symbols=report.unknown_symbols,
        speakers=corpus.speakers,
    )
