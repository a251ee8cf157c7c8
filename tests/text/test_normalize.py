import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.text.normalize import normalize_text
from profforce.text.numbers import cardinal, ordinal, year

EXAMPLES = {
    "Set a timer for 20 minutes.": "set a timer for twenty minutes.",
    "It costs $4.50.": "it costs four dollars and fifty cents.",
    "The meeting is at 4:30 p.m. on March 3rd.": (
        "the meeting is at four thirty p m on march third."
    ),
    "It is 7 a.m.": "it is seven a m.",
    "at 5pm": "at five p m",
    "We open at 12:30 P.M., then close.": "we open at twelve thirty p m, then close.",
    "9:05, 9:00 am, 9:00, 17:00": "nine oh five, nine a m, nine o'clock, seventeen hundred",
    "Mr. Smith lives at 12 Elm St.": "mister smith lives at twelve elm street.",
    "Dr. Jones vs. Mrs. O’Brien": "doctor jones versus missus o'brien",
    "St. Louis, Gen. Lee": "saint louis, general lee",
    "eggs, milk, etc.": "eggs, milk, et cetera.",
    "e.g. the U.S.A. and I.B.M.": "for example the u s a and i b m.",
    "“Hello” — she said…": '"hello" - she said...',
    "in 1998, 2005, 2026, 1900 and 2000": (
        "in nineteen ninety eight, two thousand five, twenty twenty six, nineteen hundred "
        "and two thousand"
    ),
    "the 1990s and 80's": "the nineteen nineties and eighties",
    "1,234.05": "one thousand two hundred thirty four point zero five",
    "$1, $0.50, $3 million": "one dollar, fifty cents, three million dollars",
    "£1.01, €20 and 50¢": "one pound and one penny, twenty euros and fifty cents",
    "-$5": "minus five dollars",
    "call (212) 555-0199": "call two one two, five five five, zero one nine nine",
    "code 0042 or 1-2-3-4": "code zero zero four two or one two three four",
    "3.14% of 10–15 km": "three point one four percent of ten to fifteen kilometers",
    "−5°C": "minus five degrees celsius",
    "1 lb. and 5 lbs.": "one pound. and five pounds.",
    "½ cup, 1½ cups, 3/4 inch": "one half cup, one and one half cups, three quarters inch",
    "1/2/2024 and 2024-03-05": (
        "january second, twenty twenty four and march fifth, twenty twenty four"
    ),
    "Mar. 3, 2024": "march third, twenty twenty four",
    "version 3.5.2": "version three point five point two",
    "No. 5, #7, 21st": "number five, number seven, twenty first",
    "1,2,3": "one, two, three",
    "A4 paper in 3D": "a four paper in three d",
    "a@b.com": "a at b dot com",
    "naïve café Straße": "naive cafe strasse",
    "Привет": "privet",
    "\ufeff two\u00a0 words\r\n": "two words",
    "😀 ok": "😀 ok",
    "½": "one half",
    "٣ apples": "three apples",
    "": "",
}


@pytest.mark.parametrize(("written", "spoken"), EXAMPLES.items(), ids=str)
def test_examples(written: str, spoken: str) -> None:
    assert normalize_text(written) == spoken


@pytest.mark.parametrize("spoken", [s for s in EXAMPLES.values() if "😀" not in s], ids=str)
def test_spoken_form_is_a_fixed_point(spoken: str) -> None:
    assert normalize_text(spoken) == spoken


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_string_is_accepted(text: str) -> None:
    spoken = normalize_text(text)
    assert spoken == " ".join(spoken.split())
    assert not any(symbol.isascii() and (symbol.isdigit() or symbol.isupper()) for symbol in spoken)


@given(st.text("0123456789,.:-/$%° apmst¢½", max_size=40))
@settings(max_examples=200, deadline=None)
def test_no_digit_survives_in_any_arrangement(text: str) -> None:
    assert not any(symbol.isdigit() for symbol in normalize_text(text))


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_numbers_are_plain_words(number: int) -> None:
    for words in (cardinal(str(number)), ordinal(str(number)), normalize_text(f"{number:,}")):
        assert all(word.isalpha() for word in words.split())
    assert cardinal(str(number)) == cardinal(f"{number:,}")


def test_years_and_long_digit_strings() -> None:
    assert year("1905") == "nineteen oh five" and year("1000") == "one thousand"
    assert cardinal("1" * 16) == " ".join(["one"] * 16)
    assert cardinal("007") == "zero zero seven" and cardinal("0") == "zero"


@pytest.mark.parametrize(
    "form", ["{}", "${}", "${}.50", "{}th", "{} km", "{}/2", "1.{}", "{} cents"]
)
def test_numbers_longer_than_python_reads_are_read_digit_by_digit(form: str) -> None:
    spoken = normalize_text(form.format("7" * 5000))
    assert spoken.split().count("seven") == 5000 and not any(s.isdigit() for s in spoken)


@pytest.mark.parametrize("zeros", ["0", "00", ""])
def test_zeros_before_a_price_do_not_change_its_coin(zeros: str) -> None:
    assert normalize_text(f"${zeros}1").endswith(" dollar")
    assert normalize_text(f"${zeros}2").endswith(" dollars")
    assert normalize_text(f"${zeros}0.50") == "fifty cents"


def test_other_languages_keep_their_numbers_for_the_tokenizer_to_refuse() -> None:
    assert normalize_text("Größe 5, M. Dupont", language="de") == "grosse 5, m. dupont"


SEEDS = "1 |1,111|a.|1-|$1|St. |1:|(| - |½|1.|😀|\n|p.m|1/|1st |Jan 1|1 1-|é|\u0301"


def seconds(text: str) -> float:
    start = time.process_time()
    normalize_text(text)
    return time.process_time() - start


@pytest.mark.parametrize("seed", SEEDS.split("|"))
def test_time_is_linear(seed: str) -> None:
    normalize_text(seed * 100)
    assert seconds(seed * (100_000 // len(seed))) < 5.0
