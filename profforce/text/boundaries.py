"""Where a sentence, a clause or a word ends. Rules for English, and for scripts without spaces."""

import re
from collections.abc import Sequence
from enum import IntEnum

from profforce.text.normalize import AFTER_NAMES, BEFORE_NAMES, TITLES

WIDE_ENDS = "。！？．"
ENDS = ".!?…؟।" + WIDE_ENDS
PAUSES = ",;:，、；：،؛"
DASHES = "-–—―"
OPENERS = "\"'“‘«‹([{「『（【¿¡„‚"
CLOSERS = "\"'”’»›)]}」』）】"

BRACKETS = ")]}」』）】"


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


BEFORE_NUMBERS = _words(
    "no nos fig vol p pp ch sec art jan feb mar apr jun jul aug sep sept oct nov dec"
)
"""With a dot they end no sentence if a number follows."""
NEVER_LAST = frozenset([*TITLES, *BEFORE_NAMES, "messrs", "mme", "cf", "viz", "e.g", "i.e"]) - {
    "etc",
    "jr",
    "sr",
    "dept",
}
"""Abbreviations that something follows always."""
SELDOM_LAST = frozenset([*AFTER_NAMES, "etc", "jr", "sr", "dept", "al", "est", "ft", "ca"])
"""Abbreviations that end a sentence only before a word that often begins one."""
BEGINNERS = _words(
    "the a an he she it they we you i this that these those there here in on at by for from to of "
    "with as if when while after before but and or so yet then now once since because although "
    "his her its their our your my what who how why where which not no yes some all many most "
    "one two however meanwhile perhaps suddenly today yesterday tomorrow"
)
CONJUNCTIONS = _words(
    "and but or nor so yet because although though while when where which who that if unless "
    "until since after before than whereas und oder aber et ou mais y o pero e ma и или но"
)

_WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_BETWEEN_WIDE = re.compile(f"(?<=[{_WIDE}{WIDE_ENDS}，、；：」』）】])(?=[{_WIDE}「『（【])(?!ー)")


class Break(IntEnum):
    """How strongly two atoms are parted."""

    space = 0
    conjunction = 1
    clause = 2
    sentence = 3


def atoms_of(paragraph: str) -> tuple[list[str], list[bool]]:
    """Words of ``paragraph``, ideographs and kana one by one; true for those without a space."""
    atoms: list[str] = []
    glued: list[bool] = []
    for word in paragraph.split():
        parts = _BETWEEN_WIDE.split(word)
        atoms += parts
        glued += [False, *[True] * (len(parts) - 1)]
    return atoms, glued


def breaks_of(atoms: Sequence[str]) -> list[Break]:
    """What comes after each atom of a paragraph; after the last one a sentence ends."""
    cased = any(letter.isupper() for atom in atoms for letter in atom)
    breaks, following = [Break.sentence], ""
    for left, right in zip(reversed(atoms[:-1]), reversed(atoms[1:]), strict=True):
        if any(map(str.isalnum, right)):
            following = right
        breaks.append(_break(left, right, following, cased))
    breaks.reverse()
    return _without_list_numbers(atoms, breaks)


def _without_list_numbers(atoms: Sequence[str], breaks: list[Break]) -> list[Break]:
    """The 1. that begins a sentence ends none."""
    first = True
    for number, atom in enumerate(atoms[:-1]):
        if first and breaks[number] is Break.sentence and atom[:-1].isdecimal() and len(atom) < 4:
            breaks[number] = Break.clause
        first = breaks[number] is Break.sentence
    return breaks


def _break(left: str, right: str, following: str, cased: bool) -> Break:
    """``following`` is the first atom with a letter or digit from ``right`` on."""
    closed = left.rstrip(CLOSERS)
    body = closed.rstrip(ENDS)
    marks = closed[len(body) :]
    if marks and _ends_sentence(body, marks, following, cased):
        return Break.sentence
    pauses = closed.endswith(tuple(PAUSES)) or left.endswith(tuple(BRACKETS))
    dashed = not left.strip(DASHES) or left.endswith("—") or right.startswith("—")
    if pauses or dashed or right.startswith("("):
        return Break.clause
    return Break.conjunction if right.lower() in CONJUNCTIONS else Break.space


def _ends_sentence(body: str, marks: str, following: str, cased: bool) -> bool:
    if any(mark in WIDE_ENDS for mark in marks):
        return True
    first = following.lstrip(OPENERS)[:1]
    if marks == ".":
        word = body.lstrip(OPENERS).lower()
        if word in NEVER_LAST or (word in BEFORE_NUMBERS and first.isdigit()):
            return False
        if word in SELDOM_LAST or _is_initials(word):
            begins = following.strip(OPENERS + CLOSERS + ENDS + PAUSES).lower() in BEGINNERS
            return not first or (begins and not (cased and first.islower()))
    trails_off = marks == "…" or (len(marks) > 1 and not marks.strip(".…"))
    return not (first.islower() and (cased or trails_off))


def _is_initials(word: str) -> bool:
    """J, u.s, p.m, ph.d: short parts of letters between dots."""
    parts = word.split(".") if len(word) < 12 else [word]
    return all(part.isalpha() and len(part) <= (2 if len(parts) > 1 else 1) for part in parts)
