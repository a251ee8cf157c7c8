"""How text becomes symbols."""

from dataclasses import dataclass
from enum import StrEnum


class TextFrontEnd(StrEnum):
    """How text becomes symbols: graphemes, raw IPA, or phonemes by an installed espeak-ng."""

    graphemes = "graphemes"
    ipa = "ipa"
    espeak = "espeak"


@dataclass
class TextConfig:
    """Text front end."""

    front_end: TextFrontEnd = TextFrontEnd.graphemes
    language: str = "en-us"
    """Language for espeak-ng and for normalisation (only English numbers are spelt out)."""
    normalize: bool = True
    """Spell out numbers, currency, times and abbreviations; lower-case; transliterate to ASCII."""
