"""Written text to speakable lower-case ASCII. Pure functions, linear in the text's length."""

import re
import unicodedata
from collections.abc import Mapping

from anyascii import anyascii

from profforce.text.numbers import expand_numbers

TITLES = {
    "mr": "mister",
    "mrs": "missus",
    "ms": "miz",
    "dr": "doctor",
    "prof": "professor",
    "jr": "junior",
    "sr": "senior",
    "vs": "versus",
    "etc": "et cetera",
    "approx": "approximately",
    "dept": "department",
    "mt": "mount",
}
"""Read in full with or without their dot."""

BEFORE_NAMES = {
    "gen": "general",
    "col": "colonel",
    "lt": "lieutenant",
    "capt": "captain",
    "sgt": "sergeant",
    "rev": "reverend",
    "hon": "honorable",
    "gov": "governor",
    "sen": "senator",
    "rep": "representative",
    "st": "saint",
}
AFTER_NAMES = {
    "st": "street",
    "ave": "avenue",
    "blvd": "boulevard",
    "rd": "road",
    "ln": "lane",
    "inc": "incorporated",
    "ltd": "limited",
    "co": "company",
    "corp": "corporation",
}
SIGNS = {
    "&": " and ",
    "+": " plus ",
    "=": " equals ",
    "@": " at ",
    "#": " hash ",
    "%": " percent ",
    "/": " slash ",
    "\\": " backslash ",
    "_": " underscore ",
    "*": " asterisk ",
    "<": " less than ",
    ">": " greater than ",
    "×": " times ",
    "÷": " divided by ",
    "°": " degrees ",
    "$": " dollars ",
    "£": " pounds ",
    "€": " euros ",
    "¥": " yen ",
    "¢": " cents ",
    "©": " copyright ",
}
KEPT = "£€¥¢°×÷©"
"""Signs with a reading of their own; they are not transliterated."""

PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("‘’‛ʼ′`´", "'"),
        **dict.fromkeys("“”„‟«»″", '"'),
        **dict.fromkeys("‐‑‒−﹣－", "-"),
        **dict.fromkeys("–—―⸺", " - "),
        **dict.fromkeys("[{", "("),
        **dict.fromkeys("]}", ")"),
        "…": "...",
    }
)
_FRACTION = re.compile(r"(\d?)([¼½¾⅐-⅞])")
_NOT_ASCII = re.compile(r"[^\x00-\x7f" + KEPT + "]")
_RANGE = re.compile(r"(?<=\d)\s?[–—]\s?(?=[\d$£€¥])")
_NEXT = r"(?=(\s{0,9})(\S?))"
"""Looks at the space and the symbol after an abbreviation."""
_INITIALS = re.compile(r"\b((?:[A-Za-z]\.){2,12})" + _NEXT)
_DOT = re.compile(r"(?<=[a-z])\.(?=[a-z]{2})")
_MERIDIEM = re.compile(r"\b([ap])\.\s?m\b\.?" + _NEXT, re.IGNORECASE)
_LATIN = (
    (re.compile(r"\be\.g\.", re.I), "for example"),
    (re.compile(r"\bi\.e\.", re.I), "that is"),
)
_SPACE_BEFORE_MARK = re.compile(r"\s([,.;:!?)])")


def _words(table: Mapping[str, str]) -> str:
    return "|".join(sorted(table, key=len, reverse=True))


_TITLE = re.compile(rf"\b({_words(TITLES)})\b(\.?){_NEXT}", re.IGNORECASE)
_BEFORE = re.compile(rf"\b({_words({k.title(): '' for k in BEFORE_NAMES})})\.\s(?=[A-Z])")
_AFTER = re.compile(rf"(?<=[a-z]\s)({_words({k.title(): '' for k in AFTER_NAMES})})\b(\.?){_NEXT}")
_SIGN = re.compile("[" + re.escape("".join(SIGNS)) + "]")


def normalize_text(text: str, *, language: str = "en-us") -> str:
    """Speakable form of ``text`` in lower-case ASCII, words apart by single spaces.

    Only English has its numbers, signs and abbreviations written out; other languages are
    transliterated alone. What has no transliteration (emoji, say) stays, for the tokenizer to
    name. Any string is accepted.
    """
    text = _unify(text)
    if language.lower().startswith("en"):
        text = expand_english(text)
    return collapse_whitespace(_to_ascii(text).lower())


def expand_english(text: str) -> str:
    """``text`` with abbreviations, numbers and signs written out; case and letters stay."""
    text = expand_numbers(_to_ascii_digits(_unify(text)))
    for pattern, words in _LATIN:
        text = pattern.sub(words, text)
    text = _MERIDIEM.sub(lambda m: f"{m[1]} m{_sentence_dot(m[0], m[3])}", text)
    text = _BEFORE.sub(lambda m: f"{BEFORE_NAMES[m[1].lower()]} ", text)
    text = _AFTER.sub(lambda m: AFTER_NAMES[m[1].lower()] + _sentence_dot(m[2], m[4]), text)
    text = _TITLE.sub(_title, text)
    text = _INITIALS.sub(_initials, text)
    text = _DOT.sub(" dot ", text)
    text = _SIGN.sub(lambda m: SIGNS[m[0]], text)
    return _SPACE_BEFORE_MARK.sub(r"\1", collapse_whitespace(text))


def collapse_whitespace(text: str) -> str:
    """Runs of any white space become one space; none stays at the ends."""
    return " ".join(text.split())


def _title(match: re.Match[str]) -> str:
    word = match[1].lower()
    ends = word in ("etc", "jr", "sr", "dept") and match[4].isupper()
    dot = "." if match[2] and (ends or not match[4]) else ""
    return TITLES[word] + dot


def _initials(match: re.Match[str]) -> str:
    dot = "." if not match[3] or match[3].isupper() else ""
    return match[1].replace(".", " ").strip() + dot


def _sentence_dot(taken: str, following: str) -> str:
    """The dot of an abbreviation that also ends the text."""
    return "." if taken.endswith(".") and not following else ""


def _unify(text: str) -> str:
    """Composed characters, one kind of quote, dash, bracket and fraction."""
    text = unicodedata.normalize("NFC", text)
    text = _RANGE.sub("-", text)
    text = _FRACTION.sub(_vulgar, text)
    return text.translate(PUNCTUATION)


def _vulgar(match: re.Match[str]) -> str:
    fraction = unicodedata.normalize("NFKC", match[2]).replace("\N{FRACTION SLASH}", "/")
    return f"{match[1]} and {fraction}" if match[1] else fraction


def _to_ascii_digits(text: str) -> str:
    """Numbers of every script, raised and circled ones too, in the digits 0-9."""
    return _NOT_ASCII.sub(lambda m: _digits(m[0]) if m[0].isnumeric() else m[0], text)


def _digits(symbol: str) -> str:
    if symbol.isdigit():
        return str(unicodedata.digit(symbol))
    ascii_form = anyascii(symbol)
    return ascii_form if ascii_form.isdigit() else symbol


def _to_ascii(text: str) -> str:
    return _NOT_ASCII.sub(lambda m: _transliterate(m[0]), text)


def _transliterate(symbol: str) -> str:
    """ASCII for letters, digits, marks and spaces; other symbols stay as they are."""
    category = unicodedata.category(symbol)
    if category in ("Mn", "Me", "Cf"):  # accents without a composed form, invisible joiners
        return ""
    if category[0] not in "LMNPZ":
        return symbol
    ascii_form = anyascii(symbol)
    coded = any(letter.isdigit() for letter in ascii_form)  # a catalogue number, not a sound
    return symbol if coded or not ascii_form else ascii_form
