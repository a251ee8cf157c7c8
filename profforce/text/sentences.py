"""Long text in pieces that a model can speak one by one: sentences, clauses, words.

Lengths are in symbols as a function ``measure`` counts them. The time is linear in the length of
the text. Blank lines part paragraphs; a single line break is a space.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from profforce.text.boundaries import Break, atoms_of, breaks_of

Measure = Callable[[str], int]

SHORT = 1 / 4
"""A sentence below this share of the limit is joined to its neighbour ..."""
ROOMY = 3 / 4
"""... if both stay below this share of it."""
JOINERS = "\u200d\ufe0e\ufe0f"
"""Zero-width joiner and variation selectors: no cut before or after them."""


class Gap(StrEnum):
    """What lies between a piece and the next one."""

    word = "word"
    """The sentence goes on: it was cut at a space or inside a word."""
    clause = "clause"
    sentence = "sentence"
    paragraph = "paragraph"


@dataclass(frozen=True)
class Piece:
    """A part of a text, never empty."""

    text: str
    gap: Gap
    """What follows; ``paragraph`` for the last one."""
    torn: bool = False
    """It ends inside a word that is longer than the limit."""


@dataclass(frozen=True)
class _Words:
    """One paragraph: atoms (words, or single ideographs), what parts them and their lengths."""

    atoms: Sequence[str]
    glued: Sequence[bool]
    """No space before this atom."""
    breaks: Sequence[Break]
    """After each atom."""
    measure: Measure
    ends: Sequence[int]
    """Length of the paragraph up to and with each atom, as the sum of its atoms'."""

    def text(self, start: int, stop: int) -> str:
        rows = zip(self.atoms[start:stop], self.glued[start:stop], strict=True)
        return "".join(atom if glued else f" {atom}" for atom, glued in rows).strip()

    def total(self, start: int, stop: int) -> int:
        return self.ends[stop - 1] - (self.ends[start - 1] if start else 0)


def split_text(text: str, max_symbols: int, *, measure: Measure = len) -> list[Piece]:
    """Pieces of ``text`` in order, each of at most ``max_symbols`` by ``measure``.

    Sentences stay whole where they fit, and short ones are joined. Longer ones are cut into parts
    of like length: at a mark, else before a conjunction, else at a space; a word is torn only
    where it is longer than the limit by itself. Without white space the pieces together are the
    text without white space.

    Raises:
        ValueError: if ``max_symbols`` is below 1.
    """
    if max_symbols < 1:
        raise ValueError(f"max_symbols must be >= 1, got {max_symbols}")
    pieces: list[Piece] = []
    for paragraph in _paragraphs(text):
        words = _words(paragraph, measure)
        for start, stop in _joined(words, max_symbols):
            pieces += _fitting(words, start, stop, max_symbols)
        pieces[-1] = Piece(pieces[-1].text, Gap.paragraph)
    return pieces


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            yield " ".join(lines)
            lines = []


def _words(paragraph: str, measure: Measure) -> _Words:
    atoms, glued = atoms_of(paragraph)
    lengths = (measure(atom) + (not joins) for atom, joins in zip(atoms, glued, strict=True))
    return _Words(atoms, glued, breaks_of(atoms), measure, list(accumulate(lengths)))


def _joined(words: _Words, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of atoms: sentences, the short ones among them joined."""
    sentences = _sentences(words)
    start, stop = next(sentences)
    for begin, end in sentences:
        if _belong_together(words, start, begin, end, limit):
            stop = end
        else:
            yield start, stop
            start, stop = begin, end
    yield start, stop


def _sentences(words: _Words) -> Iterator[tuple[int, int]]:
    start = 0
    for number, after in enumerate(words.breaks, 1):
        if after is Break.sentence or number == len(words.atoms):
            yield start, number
            start = number


def _belong_together(words: _Words, start: int, middle: int, stop: int, limit: int) -> bool:
    before, after = words.total(start, middle), words.total(middle, stop)
    if before + after > limit:
        return False
    silent = any(
        not any(map(str.isalnum, words.text(*part))) for part in ((start, middle), (middle, stop))
    )
    alike = min(before, after) < SHORT * limit and before + after <= ROOMY * limit
    return (silent or alike) and words.measure(words.text(start, stop)) <= limit


def _fitting(words: _Words, start: int, stop: int, limit: int) -> Iterator[Piece]:
    """The atoms from ``start`` to ``stop`` as pieces within the limit."""
    waiting = [(start, stop)]
    while waiting:
        begin, end = waiting.pop()
        gap = Gap.sentence if end == stop else _gap(words.breaks[end - 1])
        if words.total(begin, end) <= 2 * limit:  # else it is not worth measuring
            text = words.text(begin, end)
            if words.measure(text) <= limit:
                yield Piece(text, gap)
                continue
        if end - begin == 1:
            yield from _torn(words.atoms[begin], gap, limit, words.measure)
            continue
        middle = _best_cut(words, begin, end, limit)
        waiting += [(middle, end), (begin, middle)]


def _gap(after: Break) -> Gap:
    return {Break.sentence: Gap.sentence, Break.clause: Gap.clause}.get(after, Gap.word)


def _best_cut(words: _Words, start: int, stop: int, limit: int) -> int:
    """Where to cut so that parts are of like length: the strongest break near their mean."""
    total = words.total(start, stop)
    target = total / max(2, -(-total // limit))
    best, best_rank = start + 1, (False, -1, 0.0)
    for middle in range(start + 1, stop):
        length = words.total(start, middle)
        if length > limit:
            break
        near = length >= target / 2
        strength = int(words.breaks[middle - 1]) if near else -1
        rank = (near, strength, -abs(length - target))
        if rank > best_rank:
            best, best_rank = middle, rank
    return best


def _torn(word: str, gap: Gap, limit: int, measure: Measure) -> Iterator[Piece]:
    """A word longer than the limit in parts; a single character always passes."""
    start = 0
    while len(word) - start > 1:
        rest = word[start : start + limit + 1]  # all of it each time: quadratic in a long word
        length = min(len(rest), limit)
        while length > 1 and (size := measure(rest[:length])) > limit:
            length = max(1, min(length - 1, length * limit // size))
        if length == len(rest):
            break
        length = _between_letters(rest, length)
        yield Piece(rest[:length], Gap.word, torn=True)
        start += length
    yield Piece(word[start:], gap)


def _between_letters(word: str, length: int) -> int:
    """The cut at or before ``length``: after a sign, and not between a letter and its accent."""
    for cut in range(length, length // 2, -1):
        if not word[cut - 1].isalnum() and _may_cut(word, cut):
            return cut
    for cut in range(length, 0, -1):
        if _may_cut(word, cut):
            return cut
    return length


def _may_cut(word: str, cut: int) -> bool:
    after, before = word[cut], word[cut - 1]
    return not unicodedata.category(after).startswith("M") and not {after, before} & set(JOINERS)
