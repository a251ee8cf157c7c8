"""What a text says, however it is written and marked."""

import re
import unicodedata

_MARKS = re.compile(r"[\W_]+", re.ASCII)


def words_in(text: str) -> str:
    """A text without case and punctuation: letters, marks and digits, a space between words.

    A combining mark is part of its letter (vowel signs tell Indic words apart), and how an accent
    is encoded makes no difference.
    """
    if text.isascii():
        return _MARKS.sub(" ", text.lower()).strip()
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    kept = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in folded)
    return " ".join("".join(kept).split())


def letters_in(text: str) -> str:
    """:func:`words_in` without the spaces: "an ice" is "a nice"."""
    return words_in(text).replace(" ", "")
