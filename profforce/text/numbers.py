"""Numbers, money, times, dates and units in words. English, American readings.

Every function is pure. No pattern can start twice on the same run of digits or repeat without a
bound, so the time is linear in the length of the text.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # takes a second or two to import, and most texts have no number
    import inflect

MAX_DIGITS = 15
"""Longer numbers are read digit by digit, as are those that start with a zero."""

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MONTHS = [
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
]
_MONTH = "|".join(MONTHS) + "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
_SHORT_MONTHS = {month[:3].lower(): month for month in MONTHS} | {"sept": "September"}

CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
}
_SCALE = r"(?P<scale>(?:\s|-)(?:hundred|thousand|million|billion|trillion)\b)?"

UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "lbs": ("pound", "pounds"),
    "lb": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ft": ("foot", "feet"),
    "ml": ("milliliter", "milliliters"),
    "mi": ("mile", "miles"),
    "hrs": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "mins": ("minute", "minutes"),
    "min": ("minute", "minutes"),
    "secs": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "ms": ("millisecond", "milliseconds"),
    "khz": ("kilohertz", "kilohertz"),
    "mhz": ("megahertz", "megahertz"),
    "ghz": ("gigahertz", "gigahertz"),
    "hz": ("hertz", "hertz"),
    "mb": ("megabyte", "megabytes"),
    "gb": ("gigabyte", "gigabytes"),
    "kb": ("kilobyte", "kilobytes"),
    "°c": ("degree Celsius", "degrees Celsius"),
    "°f": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
    "m": ("meter", "meters"),
    "g": ("gram", "grams"),
}
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))

_AMOUNT = r"(?<![\w.,])(?P<amount>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
_MERIDIEM = r"(?:\s?(?P<half>[ap])(?:\.\s?m(?:\.(?=[\s,;:]{0,3}\w))?(?!\w)|m\b))"
"""a.m. or p.m.; its last dot is left alone where it ends the text."""


def expand_numbers(text: str) -> str:
    """``text`` with every number written out; everything else is left as it stands."""
    for pattern, spell in _RULES:
        text = pattern.sub(spell, text)
    return text


@lru_cache(maxsize=1)
def _engine() -> "inflect.engine":
    import inflect

    return inflect.engine()


@lru_cache(maxsize=4096)
def cardinal(digits: str) -> str:
    """``"121"`` as ``one hundred twenty one``; too long or zero-led ones digit by digit."""
    digits = digits.replace(",", "")
    if len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        return spell_digits(digits)
    return _plain(str(_engine().number_to_words(digits.lstrip("0") or "0", andword="")))


@lru_cache(maxsize=4096)
def ordinal(digits: str) -> str:
    """``"21"`` as ``twenty first``."""
    digits = digits.replace(",", "")
    if len(digits) > MAX_DIGITS:
        return spell_digits(digits)
    words = str(_engine().number_to_words(digits.lstrip("0") or "0", andword=""))
    return _plain(str(_engine().ordinal(words)))


def year(digits: str) -> str:
    """``"1905"`` as ``nineteen oh five``, ``"2026"`` as ``twenty twenty six``."""
    number = int(digits)
    if not 1000 <= number <= 2999 or 2000 <= number <= 2009 or number % 1000 == 0:
        return cardinal(digits)
    century, rest = cardinal(digits[:2]), int(digits[2:])
    if rest == 0:
        return f"{century} hundred"
    return f"{century} {'oh ' if rest < 10 else ''}{cardinal(str(rest))}"


def spell_digits(digits: str) -> str:
    """``"407"`` as ``four zero seven``; what is no digit parts the words."""
    return " ".join(DIGITS[int(digit)] for digit in digits if digit in "0123456789")


def decimal(amount: str) -> str:
    """``"3.05"`` as ``three point zero five``; whole numbers as :func:`cardinal`."""
    whole, _, fraction = amount.partition(".")
    words = cardinal(whole or "0")
    return f"{words} point {spell_digits(fraction)}" if fraction else words


def _plain(words: str) -> str:
    return " ".join(words.replace(",", " ").replace("-", " ").split())


def _money(match: re.Match[str]) -> str:
    one, many, small, smalls = CURRENCIES[match["sign"]]
    amount = match["amount"].replace(",", "")
    if match["scale"]:
        return f"{decimal(amount)} {match['scale'].strip(' -')} {many}"
    whole, _, fraction = amount.partition(".")
    if len(fraction) > 2:
        return f"{decimal(amount)} {many}"
    cents = int(fraction.ljust(2, "0")) if fraction else 0
    parts = []
    count = whole.lstrip("0")  # int() takes no more than 4,300 digits
    if count or not cents:
        parts.append(f"{cardinal(whole)} {one if count == '1' else many}")
    if cents:
        parts.append(f"{cardinal(str(cents))} {small if cents == 1 else smalls}")
    return " and ".join(parts)


def _cents(match: re.Match[str]) -> str:
    amount = match["amount"]
    return f"{decimal(amount)} {'cent' if amount == '1' else 'cents'}"


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), match["minute"]
    half = f" {match['half'].lower()} m" if match["half"] else ""
    if hour > 24 or int(minute) > 59:
        return f"{cardinal(match['hour'])} {cardinal(minute)}{half}"
    if minute == "00":
        whole = "" if half else " o'clock" if 1 <= hour <= 12 else " hundred"
        return f"{cardinal(str(hour))}{whole}{half}"
    spoken = f"oh {cardinal(minute[1])}" if minute[0] == "0" else cardinal(minute)
    return f"{cardinal(str(hour))} {spoken}{half}"


def _hour(match: re.Match[str]) -> str:
    return f"{cardinal(str(int(match['hour'])))} {match['half'].lower()} m"


def _day(match: re.Match[str]) -> str:
    name = match["month"]
    month = _SHORT_MONTHS.get(name.lower().rstrip("."), name)
    after = f", {year(match['year'])}" if match["year"] else ""
    return f"{month} {ordinal(match['day'])}{after}"


def _iso_date(match: re.Match[str]) -> str:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    return f"{MONTHS[month - 1]} {ordinal(str(day))}, {year(match['year'])}"


def _slash_date(match: re.Match[str]) -> str:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    after = f", {year(match['year'])}" if match["year"] else ""
    return f"{MONTHS[month - 1]} {ordinal(str(day))}{after}"


def _fraction(match: re.Match[str]) -> str:
    top, bottom = int(match["top"]), int(match["bottom"])
    if bottom == 2:
        return f"{cardinal(str(top))} {'half' if top == 1 else 'halves'}"
    if bottom == 4:
        return f"{cardinal(str(top))} {'quarter' if top == 1 else 'quarters'}"
    if bottom > 99 or bottom < 2:
        return f"{cardinal(match['top'])} over {cardinal(match['bottom'])}"
    return f"{cardinal(str(top))} {ordinal(str(bottom))}{'' if top == 1 else 's'}"


def _unit(match: re.Match[str]) -> str:
    one, many = UNITS[match["unit"].lower()]
    return f"{decimal(match['amount'])} {one if match['amount'] == '1' else many}"


def _decade(match: re.Match[str]) -> str:
    words = year(match["digits"]) if len(match["digits"]) == 4 else cardinal(match["digits"])
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _standalone(match: re.Match[str]) -> str:
    digits = match["amount"]
    if len(digits) == 4 and digits.isdecimal() and 1100 <= int(digits) <= 2099:
        return year(digits)
    return decimal(digits)


def _rule(
    pattern: str, spell: Callable[[re.Match[str]], str]
) -> tuple[re.Pattern[str], Callable[[re.Match[str]], str]]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII), spell


_RULES = (
    _rule(r"(?<![\w)])-(?=[$£€¥]?\d)", lambda m: "minus "),
    _rule(
        r"(?<![\w.])\d{1,6}(?:\.\d{1,6}){2,5}(?![\w.])",
        lambda m: " point ".join(map(cardinal, m[0].split("."))),
    ),
    _rule(r"(?P<sign>[$£€¥])\s?" + _AMOUNT.replace(r"(?<![\w.,])", "") + _SCALE, _money),
    _rule(_AMOUNT + r"\s?¢", _cents),
    _rule(r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?![\d:])" + _MERIDIEM + "?", _time),
    _rule(r"(?<![\w.,:])(?P<hour>\d{1,2})" + _MERIDIEM, _hour),
    _rule(r"\b(?P<year>[12]\d{3})-(?P<month>\d\d)-(?P<day>\d\d)\b", _iso_date),
    _rule(r"(?<![\w/])(?P<month>\d\d?)/(?P<day>\d\d?)/(?P<year>[12]\d{3})\b", _slash_date),
    _rule(
        rf"\b(?P<month>(?:{_MONTH})\b\.?)\s(?P<day>\d\d?)(?:st|nd|rd|th)?\b(?![:.,]\d)"
        r"(?:,?\s(?P<year>[12]\d{3})\b)?",
        _day,
    ),
    _rule(r"\b(\d{1,3}(?:,\d{3}){1,6}|\d+)(?:st|nd|rd|th)\b", lambda m: ordinal(m[1])),
    _rule(r"\b(?P<digits>(?:1[1-9]|20)\d0|[2-9]0)'?s\b", _decade),
    _rule(
        r"(?<![\w-])(?:\+?1[ -])?\(?(\d{3})\)?[ -](\d{3})-(\d{4})(?![\w-])",
        lambda m: ", ".join(spell_digits(part) for part in m.groups()),
    ),
    _rule(
        r"(?<![\w-])(\d{3})-(\d{4})(?![\w-])", lambda m: ", ".join(map(spell_digits, m.groups()))
    ),
    _rule(r"(?<![\w-])\d(?:[- ]\d){2,30}(?![\w-])", lambda m: spell_digits(m[0])),
    _rule(r"(?<=\d)\s?-\s?(?=\d)", lambda m: " to "),
    _rule(r"(?<![\w/.])(?P<top>\d{1,2})/(?P<bottom>\d{1,3})(?![\w/])", _fraction),
    _rule(_AMOUNT + rf"[\s-]?(?P<unit>{_UNIT})(?![\w/])", _unit),
    _rule(r"(?:#|\bNo\.?\s)(?=\d)", lambda m: "number "),
    _rule(_AMOUNT + r"(?!\w)", _standalone),
    _rule(r"\d+", lambda m: f" {cardinal(m[0])} "),
)
