"""What is wrong with a transcript by itself. A predicate yields (kind, what was found)."""

import html
import re
import unicodedata
from collections.abc import Iterator, Set

from profforce.data.check import text_kinds as kinds
from profforce.data.check.kinds import Kind

PLAIN = re.compile(r"[A-Za-z0-9.,:;?!'()-]+(?: [A-Za-z0-9.,:;?!'()-]+)*")
"""Nothing here can be wrong by itself: most lines need no closer look."""
SPACE_KINDS = re.compile(r"[^\S ]|  ")
TAG = re.compile(r"</?[A-Za-z][^<>]{0,60}>")
ENTITY = re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,7}|#x[0-9A-Fa-f]{1,6});")
JOINERS = "\u200c\u200d"
"""Zero-width non-joiner and joiner: part of the spelling in Persian, Hindi and others."""
MAX_DIGITS = 1000
"""Python converts numbers of up to 4300 digits; a sign may stand for four."""
MAX_NAMED = 6
"""Characters named in one finding."""


def text_defects(text: str) -> Iterator[tuple[Kind, str]]:
    """Everything that can be said about a transcript without knowing the alphabet."""
    if PLAIN.fullmatch(text):
        return
    if controls := [c for c in text if is_control(c)]:
        yield kinds.TEXT_CONTROL, named(controls)
    if hidden := invisible(text):
        yield kinds.TEXT_ZERO_WIDTH, named(hidden)
    if match := SPACE_KINDS.search(text):
        yield kinds.TEXT_WHITESPACE, repr(text[max(0, match.start() - 15) :][:40])
    if "\ufffd" in text:
        yield kinds.TEXT_REPLACEMENT, quoted(text, text.index("\ufffd"))
    if meant := misread(text):
        yield kinds.TEXT_MOJIBAKE, f"{text[:40]!r}, meant {meant[:40]!r}"
    if not unicodedata.is_normalized("NFC", text):
        yield kinds.TEXT_DECOMPOSED, named([c for c in text if unicodedata.combining(c)])
    if match := _markup(text):
        yield kinds.TEXT_MARKUP, quoted(text, match.start())
    if len(text) > 2 and text[0] == text[-1] == '"' and '""' in text[1:-1]:
        yield kinds.TEXT_CSV_QUOTES, repr(text[:40])


def unknown_symbols(spoken: str, alphabet: frozenset[str]) -> list[str]:
    """Characters of a normalized text outside the alphabet, but those reported as invisible."""
    if alphabet.issuperset(spoken):
        return []
    return [c for c in spoken if c not in alphabet and not is_control(c) and not is_format(c)]


def num_known(spoken: str, alphabet: frozenset[str]) -> int:
    """Symbols of a normalized text that are in the alphabet."""
    if alphabet.issuperset(spoken):
        return len(spoken)
    return sum(c in alphabet for c in spoken)


def is_speakable(spoken: str, alphabet: Set[str]) -> bool:
    """Whether a normalized text holds a letter or digit of the alphabet."""
    return any(c.isalnum() for c in spoken if c in alphabet)


def has_too_many_digits(text: str) -> bool:
    """Whether a text holds a number that is beyond being written out."""
    return len(text) > MAX_DIGITS and sum(c.isnumeric() for c in text) > MAX_DIGITS


def is_control(letter: str) -> bool:
    """A control character that is no white space."""
    return unicodedata.category(letter) == "Cc" and not letter.isspace()


def is_format(letter: str) -> bool:
    """A zero-width, bidirectional or otherwise invisible character."""
    return unicodedata.category(letter) == "Cf"


def invisible(text: str) -> list[str]:
    """Format characters of ``text``, without joiners that are part of the spelling."""
    return [c for k, c in enumerate(text) if is_format(c) and not _joins(text, k)]


def visible(text: str) -> str:
    """``text`` without control and invisible characters, in single spaces."""
    kept = (
        c for k, c in enumerate(text) if not is_control(c) and (not is_format(c) or _joins(text, k))
    )
    return " ".join("".join(kept).split())


def misread(text: str) -> str | None:
    """What ``text`` was before its UTF-8 was taken for Latin-1 or Windows-1252."""
    if text.isascii():
        return None
    for encoding in ("cp1252", "latin-1"):
        try:
            return text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
    return None


def named(letters: list[str]) -> str:
    """``'é' (U+00E9)`` for each of the first few different ones."""
    different = list(dict.fromkeys(letters))
    shown = ", ".join(f"{letter!r} (U+{ord(letter):04X})" for letter in different[:MAX_NAMED])
    more = len(different) - MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def quoted(text: str, position: int) -> str:
    """The surroundings of ``position``."""
    return repr(text[max(0, position - 15) : position + 25])


def _markup(text: str) -> re.Match[str] | None:
    """A tag, or an entity that HTML knows."""
    known = (m for m in ENTITY.finditer(text) if html.unescape(m[0]) != m[0])
    return TAG.search(text) or next(known, None)


def _joins(text: str, position: int) -> bool:
    """Whether the joiner at ``position`` stands after a letter of a script that needs it."""
    before = text[position - 1] if position else ""
    return text[position] in JOINERS and before > "\u0590" and before.isprintable()
