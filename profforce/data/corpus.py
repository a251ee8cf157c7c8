"""A corpus ready for training: tokenized, split by text, its mels at hand.

T mel frames, M mel channels, S symbols.
"""

from dataclasses import dataclass
from pathlib import Path

from profforce.config import DataConfig, MelConfig, TextConfig
from profforce.data.assemble import Assembled, Assembly, Source
from profforce.data.check.sides import is_valid_text
from profforce.data.columns import Array, Chosen
from profforce.data.dataset import MelDataset
from profforce.data.features import ChosenFeatures
from profforce.data.manifest import corpus_root
from profforce.data.manifest_source import ManifestSource
from profforce.data.progress import Progress
from profforce.data.report import CorpusReport, UnknownSymbol, tell
from profforce.data.stored import in_files, keep, open_stored, place_for, store_of
from profforce.data.webdata_source import TarSource
from profforce.errors import UserError
from profforce.text.tokenizer import Tokenizer

__all__ = ["Corpus", "CorpusReport", "UnknownSymbol", "corpus_root", "is_valid_text", "load_corpus"]


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
    mark: str = ""
    """Hash of every id, text and length, and of the side that an utterance is on."""

    def fingerprint(self) -> str:
        """By which a run knows its corpus again."""
        return self.mark


def load_corpus(
    data: DataConfig, text: TextConfig, mel: MelConfig, progress: Progress | None = None
) -> Corpus:
    """Read the corpus at ``data.root``; features that are not cached yet are computed.

    Or the tar files at ``data.shards``, whose features are computed whenever they are read.

    A corpus of 200,000 utterances or more is read once: its columns are kept in files and mapped.
    Raises :class:`UserError` for whatever is wrong with the corpus.
    """
    tokenizer = Tokenizer(text)
    source: Source = ManifestSource(data, mel) if data.shards is None else TarSource(data, mel)
    folder = store_of(source, data, tokenizer, mel)
    made = open_stored(folder, source)
    if made is None:
        made = _read(source, data, tokenizer, mel, folder, progress)
    tell(made.report)
    train, valid = (_side(made, rows) for rows in (made.train, made.valid))
    return Corpus(train, valid, tokenizer, made.speakers, mel, made.report, made.fingerprint)


def _read(
    source: Source,
    data: DataConfig,
    tokenizer: Tokenizer,
    mel: MelConfig,
    folder: Path,
    progress: Progress | None,
) -> Assembled:
    with place_for(folder) as place:
        try:
            made = Assembly(source, data, tokenizer, mel, place).run(progress)
            return keep(made, place, folder, source) if in_files(place) else made
        except OSError as error:
            named = error.filename  # none where a disk is full
            if named is not None and not str(named).startswith(str(source.store)):
                raise
            raise UserError(
                f"cannot keep the columns of the corpus ({error.strerror or error})",
                where=folder,
                remedy="free some space or set data.cache to a folder that can be written",
            ) from error


def _side(made: Assembled, rows: Array) -> MelDataset:
    return MelDataset(
        Chosen(made.table, rows),
        Chosen(made.symbols, rows),
        ChosenFeatures(made.features, rows),
        speakers=made.numbers[rows],
        num_symbols=made.symbols.sizes()[rows],
    )
