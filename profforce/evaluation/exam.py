"""Texts that a model never saw, with the truth to compare with: short ones and longer ones.

B batch, S symbols, T mel frames, M mel channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from profforce.config import MelConfig
from profforce.data.batch import Batch, Item, collate
from profforce.data.corpus import Corpus
from profforce.data.dataset import MelDataset
from profforce.data.recipes.synthetic import NUM_UTTERANCES, synthetic_texts
from profforce.errors import UserError
from profforce.evaluation.letters import Token, rendered, tokens_of
from profforce.text.tokenizer import Tokenizer
from profforce.text.words import words_in

IN_LENGTH, LONGER, SEEN, TWICE = "in_length", "longer", "seen", "twice"


@dataclass(frozen=True)
class Exam:
    """Utterances of one kind."""

    name: str
    batch: Batch
    """Texts with the mels they should be spoken as."""
    tokens: tuple[tuple[Token, ...], ...] | None
    """Letters of each utterance, None where they cannot be known from the sound."""
    other: Batch | None = None
    """The same texts read another time, None where there is no other reading."""

    def repeated(self, times: int) -> "Exam":
        """Each text ``times`` in a row: of the prenet's noise each has another."""
        rows = torch.arange(len(self.batch)).repeat_interleave(times)
        tokens = None if self.tokens is None else tuple(self.tokens[row] for row in rows.tolist())
        other = None if self.other is None else self.other.rows(rows)
        return Exam(self.name, self.batch.rows(rows), tokens, other)


def synthetic_exams(
    tokenizer: Tokenizer,
    mel: MelConfig,
    *,
    trained: int | None,
    variation: float,
    num: int,
    joined: int,
) -> list[Exam]:
    """``num`` unseen texts of the synthetic corpus, and as many of ``joined`` texts in one.

    Args:
        tokenizer: of the run.
        mel: of the run.
        trained: ``data.num_utterances`` of the run, whose texts are left out.
        variation: ``data.variation`` of the run.
        num: utterances an exam, at least one.
        joined: texts whose words make one of the longer ones; its only full stop ends it.
    """
    first = trained or NUM_UTTERANCES
    texts = synthetic_texts(first + num * (1 + joined))[first:]
    longer = [texts[num + k * joined : num + (k + 1) * joined] for k in range(num)]
    lists = {
        IN_LENGTH: texts[:num],
        LONGER: [" ".join(text.rstrip(".") for text in parts) + "." for parts in longer],
    }
    return [_synthetic_exam(name, said, tokenizer, mel, variation) for name, said in lists.items()]


def corpus_exams(corpus: Corpus, *, num: int, joined: int, min_words: int = 1) -> list[Exam]:
    """The first ``num`` held-out utterances, and ``joined`` held-out ones after another in one.

    Those of fewer than ``min_words`` words are left out: a word that stands alone and was never
    heard tells of the unknown word, not of the free run.

    Raises :class:`UserError` for a corpus of several speakers, of whom none could read them all.
    """
    if len(corpus.speakers) > 1:
        raise UserError(
            "utterances of several speakers cannot be joined",
            got=f"{len(corpus.speakers)} speakers",
            remedy="examine a corpus of one speaker",
        )
    items = _first(corpus.valid, num, min_words)
    groups = [items[k : k + joined] for k in range(0, len(items) - joined + 1, joined)]
    exams = [Exam(IN_LENGTH, collate(items), None)]
    if groups:
        texts = [" ".join(item.text for item in group) for group in groups]
        mels = [torch.cat([item.mel for item in group]) for group in groups]
        exams.append(Exam(LONGER, _batch(corpus.tokenizer, texts, mels), None))
    return exams


def twice_read_exam(corpus: Corpus, *, min_words: int = 1) -> Exam:
    """Every recording of a text that its speaker read more than once, ``other`` being the next one.

    Texts are the same whose words are. Most of them are of the training set.

    Raises :class:`UserError` if no text of at least ``min_words`` words was read twice.
    """
    found: dict[tuple[int, str], list[tuple[MelDataset, int]]] = {}
    for side in (corpus.train, corpus.valid):
        for place, utterance in enumerate(side.utterances):
            words = words_in(utterance.spoken)
            if words and len(words.split()) >= min_words:
                found.setdefault((side.speaker(place), words), []).append((side, place))
    circles = [circle for circle in found.values() if len(circle) > 1]
    if not circles:
        raise UserError("no text was read twice", expected=f"one of at least {min_words} words")
    this = [side[place] for circle in circles for side, place in circle]
    that = [side[place] for circle in circles for side, place in (*circle[1:], circle[0])]
    return Exam(TWICE, collate(this), None, collate(that))


def seen_exam(
    corpus: Corpus, mel: MelConfig, *, num: int, letters: bool, min_words: int = 1
) -> Exam:
    """The first ``num`` utterances of training: what fails here is no matter of unknown texts.

    Args:
        corpus: of the run.
        mel: of the run.
        num: utterances, at least one; all there are if there are fewer.
        letters: whether it is the synthetic corpus, whose letters are known from the sound.
        min_words: shorter ones are left out.
    """
    items = _first(corpus.train, num, min_words)
    said = tuple(tuple(tokens_of(item.text, mel)) for item in items) if letters else None
    return Exam(SEEN, collate(items), said)


def _first(side: MelDataset, num: int, min_words: int) -> list[Item]:
    """The first ``num`` utterances of at least ``min_words`` words.

    Raises :class:`UserError` if there is none.
    """
    words = (len(utterance.spoken.split()) for utterance in side.utterances)
    places = list(islice((place for place, count in enumerate(words) if count >= min_words), num))
    if not places:
        raise UserError("no utterance is that long", expected=f"at least {min_words} words")
    return [side[place] for place in places]


def _synthetic_exam(
    name: str, texts: Sequence[str], tokenizer: Tokenizer, mel: MelConfig, variation: float
) -> Exam:
    readings = [
        _batch(tokenizer, texts, [rendered(text, mel, variation, reading) for text in texts])
        for reading in range(2 if variation else 1)
    ]
    tokens = tuple(tuple(tokens_of(text, mel)) for text in texts)
    return Exam(name, readings[0], tokens, *readings[1:])


def _batch(tokenizer: Tokenizer, texts: Sequence[str], mels: Sequence[Tensor]) -> Batch:
    numbers = tokenizer.encode_many(texts)
    return collate(
        [
            Item(k, f"exam-{k:04d}", text, torch.tensor(symbols), mel, 0)
            for k, (text, symbols, mel) in enumerate(zip(texts, numbers, mels, strict=True))
        ]
    )
