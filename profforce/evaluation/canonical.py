"""One form for the many ways of writing the same spoken words.

A judge compares what was said, not how a transcriber happened to write it: ``$4.50`` and ``four
dollars and fifty cents``, ``4:30 p.m.`` and ``four thirty p m``, ``October 28th`` and ``october
twenty eighth`` all become the same words. Numbers end as single digits, because ``5421`` may have
been read as digits, as pairs or as a whole, and speech is scored, not grouping.
"""

import re
from itertools import pairwise

from anyascii import anyascii

UNITS = {
    word: number
    for number, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    )
}
TEENS = {
    word: number
    for number, word in enumerate(
        [
            *("ten", "eleven", "twelve", "thirteen", "fourteen"),
            *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
        ],
        10,
    )
}
TENS = {
    word: 10 * number
    for number, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2
    )
}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
IRREGULAR_ORDINALS = {
    "first": "one",
    "second": "two",
    "third": "three",
    "fifth": "five",
    "eighth": "eight",
    "ninth": "nine",
    "twelfth": "twelve",
}
SPELLINGS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "prof": "professor",
    "vs": "versus",
    "saint": "st",
    "street": "st",
    "avenue": "ave",
    "okay": "ok",
    "grey": "gray",
    "colour": "color",
    "colours": "colors",
    "favourite": "favorite",
    "neighbour": "neighbor",
    "neighbours": "neighbors",
    "centre": "center",
    "theatre": "theater",
    "litre": "liter",
    "litres": "liters",
    "metre": "meter",
    "metres": "meters",
    "kilometre": "kilometer",
    "kilometres": "kilometers",
    "km": "kilometers",
    "kg": "kilograms",
    "cm": "centimeters",
    "mph": "miles per hour",
    "dollar": "dollars",
    "cent": "cents",
    "alright": "all right",
    "goodbye": "good bye",
    "email": "e mail",
    "tv": "t v",
    "thankyou": "thank you",
}
MONTHS = [
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
]
SHORT_MONTHS = {month[:3]: month for month in MONTHS if month != "may"} | {"sept": "september"}

_MONEY = re.compile(r"([$£€])\s?(\d+)(?:\.(\d\d?))?(?:\s(hundred|thousand|million|billion)\b)?")
_MONEY_NAMES = {"$": ("dollars", "cents"), "£": ("pounds", "pence"), "€": ("euros", "cents")}
_SUBSTITUTIONS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d),(?=\d{3}\b)", ""),
        (r"(\d)\s?(?:¢)", r"\1 cents"),
        (r"(?<![\w)])-(?=[$£€]?\d)", " minus "),
        (r"\b(\d{1,2}):00\b", r"\1 "),
        (r"\b(\d{1,2})[:.](\d\d)(?=\s?[ap]\.?\s?m\b)", r"\1 \2"),
        (r"(\d):(\d\d)", r"\1 \2"),
        (r"\b([ap])\.\s?m\b\.?", r" \1m "),
        (r"\b(\d+)\s?([ap])\.?m\b", r"\1 \2m"),
        (r"\bo'?\s?clock\b", " "),
        (r"(\d)(?:st|nd|rd|th)\b", r"\1"),
        (r"(\d)'?s\b", r"\1 s"),
        (r"(\d)\.(?=\d)", r"\1 point "),
        (r"(?:#|\bno\.\s?)(?=\d)", "number "),
        (r"\bper cent\b|%", " percent "),
        (r"&", " and "),
        (r"\+", " plus "),
        (r"°\s?c\b", " degrees celsius "),
        (r"°\s?f\b", " degrees fahrenheit "),
        (r"°", " degrees "),
        (r"(?<=[a-z])\.(?=[a-z]\b)", " "),
        (r"'", ""),
    )
]
_DECADES = {f"{word[:-1]}ies": f"{word} s" for word in TENS}


def canonical(text: str) -> str:
    """Lower-case words and single digits, apart by one space; nothing else is left."""
    text = re.sub(r"[‘’]", "'", text.lower())
    text = re.sub(r"[–—−]", "-", text)
    text = _MONEY.sub(_spell_money, re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<=\d)(?=[a-z])|(?<=[a-z])(?=\d)", " ", anyascii(text).lower())
    words = re.findall(r"[a-z]+|\d+", text)
    words = [part for word in words for part in _respell(word).split()]
    return " ".join(_tidy(_read_numbers(words)))


def _spell_money(match: re.Match[str]) -> str:
    many, small = _MONEY_NAMES[match[1]]
    whole, fraction, scale = match[2], match[3], match[4]
    if scale:
        point = f".{fraction}" if fraction else ""
        return f" {whole}{point} {scale} {many} "
    cents = int(fraction.ljust(2, "0")) if fraction else 0
    parts = [f"{whole} {many}"] if int(whole) or not cents else []
    return f" {' '.join([*parts, f'{cents} {small}' if cents else ''])} "


def _respell(word: str) -> str:
    word = SHORT_MONTHS.get(word, word)
    return _DECADES.get(word, SPELLINGS.get(word, word))


def _cardinal_of(word: str) -> str:
    """The cardinal an ordinal word is made of; other words as they are."""
    if word in IRREGULAR_ORDINALS:
        return IRREGULAR_ORDINALS[word]
    for stem in (word.removesuffix("th"), word.removesuffix("ieth") + "y"):
        if word.endswith("th") and (stem in UNITS or stem in TEENS or stem in TENS):
            return stem
        if word.endswith("th") and (stem in SCALES or stem == "hundred"):
            return stem
    return word


class _Number:
    """A number under way: ``seven hundred`` ``and`` ``three``."""

    def __init__(self) -> None:
        self.total = 0
        self.group: int | None = None
        self.room = 10**15
        """Only a part smaller than this can still join the group."""
        self.last_scale = 10**15

    def takes(self, value: int) -> bool:
        """Add a unit, teen, ten or written number if it can stand after what came so far."""
        if value >= self.room or (value == 0 and self.group is not None):
            return False
        self.group = (self.group or 0) + value
        self.room = 10 if value in TENS.values() else 0
        return True

    def hundred(self) -> bool:
        if self.group is None or not 0 < self.group < 100:
            return False
        self.group, self.room = self.group * 100, 100
        return True

    def scale(self, size: int) -> bool:
        if self.group is None or size >= self.last_scale:
            return False
        self.total += self.group * size
        self.group, self.room, self.last_scale = None, min(size, 1000), size
        return True

    @property
    def value(self) -> int:
        return self.total + (self.group or 0)


def _read_numbers(words: list[str]) -> list[str]:
    """Number words and digits as single digits; the rest as it is."""
    out: list[str] = []
    at = 0
    while at < len(words):
        number, end = _read_one(words, at)
        if number is not None:
            out.extend(number)
        elif words[at] in ("o", "oh") and out and out[-1].isdigit() and _numeric(words, at + 1):
            out.append("0")
        else:
            out.append(words[at])
        at = max(end, at + 1)
    return out


def _numeric(words: list[str], at: int) -> bool:
    while at < len(words) and words[at] in ("o", "oh"):
        at += 1
    return at < len(words) and _read_one(words, at)[0] is not None


def _read_one(words: list[str], start: int) -> tuple[str | None, int]:
    """The longest number that starts at ``start`` and the index after it, or None."""
    if words[start].isdigit() and not _is_scale(words, start + 1):
        return words[start], start + 1
    number, at = _Number(), start
    if words[start] == "a" and _is_scale(words, start + 1):
        number.takes(1)
        at += 1
    while at < len(words):
        joined = words[at] == "and" and at > start and _joins(words, at)
        word = words[at + 1] if joined else words[at]
        if not _extend(number, word):
            break
        at += 2 if joined else 1
        if _cardinal_of(word) != word:  # an ordinal ends its number
            break
    return (None, start) if at == start else (str(number.value), at)


def _extend(number: _Number, word: str) -> bool:
    word = _cardinal_of(word)
    if word == "hundred":
        return number.hundred()
    if word in SCALES:
        return number.scale(SCALES[word])
    value = UNITS.get(word, TEENS.get(word, TENS.get(word)))
    if value is None and word.isdigit() and len(word) < 15:
        value = int(word)
    return value is not None and number.takes(value)


def _is_scale(words: list[str], at: int) -> bool:
    return at < len(words) and (words[at] in SCALES or words[at] == "hundred")


def _joins(words: list[str], at: int) -> bool:
    """Whether the ``and`` at ``at`` stands inside a number: after hundred or a scale."""
    following = words[at + 1] if at + 1 < len(words) else ""
    return _is_scale(words, at - 1) and (
        _cardinal_of(following) in UNITS | TEENS | TENS or following.isdigit()
    )


def _tidy(words: list[str]) -> list[str]:
    """Join ``p m`` after digits, drop words that are often not written, part the digits."""
    out: list[str] = []
    for word, after in pairwise([*words, ""]):
        before = out[-1] if out else ""
        if word == "m" and before in ("a", "p") and (len(out) < 2 or out[-2].isdigit()):
            out[-1] = f"{before}m"
        elif not (after.isdigit() and _unwritten(before, word)):
            out.extend(word if word.isdigit() else [word])
    return out


def _unwritten(before: str, word: str) -> bool:
    """``and`` between dollars and cents, ``the`` between a month and its day, ``point``.

    The last because Whisper writes times as ``9.30``; which point was spoken cannot be told.
    """
    if word == "point":
        return before.isdigit()
    money = ("dollars", "pounds", "euros")
    return (word == "and" and before in money) or (word == "the" and before in MONTHS)
