"""One form for the many ways of writing the same spoken words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.evaluation.canonical import canonical
from profforce.text.normalize import normalize_text

SAME = [
    ("4:30 p.m.", "four thirty p m"),
    ("5 PM", "five pm."),
    ("9.30 a.m.", "nine thirty am"),
    ("The train leaves at 9.30.", "the train leaves at nine thirty"),
    ("It is 3:28 in the morning.", "It is three twenty eight in the morning."),
    ("9:00", "nine o'clock"),
    ("9 o’clock", "nine"),
    ("$4.50", "four dollars and fifty cents"),
    ("$0.50", "fifty cents"),
    ("$88", "eighty-eight dollars"),
    ("$1", "one dollar"),
    ("$1,000", "one thousand dollars"),
    ("$2.5 million", "two point five million dollars"),
    ("October 28th", "october twenty eighth"),
    ("January 8", "January the eighth"),
    ("Oct. 3", "october third"),
    ("5421", "five four two one"),
    ("5-4-2-1", "five, four, two, one."),
    ("54 21", "five four two one"),
    ("703 tickets", "seven hundred three tickets"),
    ("703", "seven hundred and three"),
    ("7 oh 9", "seven zero nine"),
    ("1,234", "one thousand two hundred thirty four"),
    ("2,000", "two thousand"),
    ("1500", "fifteen hundred"),
    ("100", "a hundred"),
    ("1 million", "a million"),
    ("2026", "twenty twenty-six"),
    ("2005", "two thousand five"),
    ("1905", "nineteen oh five"),
    ("the 1990s", "the nineteen nineties"),
    ("21st", "twenty-first"),
    ("123rd", "one hundred and twenty third"),
    ("3.5%", "three point five per cent"),
    ("20°C", "twenty degrees celsius"),
    ("-5", "minus five"),
    ("No. 5", "number five"),
    ("Dr. Smith", "doctor smith"),
    ("Mr. O’Brien", "mister obrien"),
    ("It’s grey.", "its gray"),
    ("Set a timer for 20 minutes.", "set a timer for twenty minutes"),
    ("naïve", "naive"),
]
DIFFERENT = [
    ("4:30 p.m.", "four thirty a m"),
    ("$4.50", "four dollars and fifteen cents"),
    ("twenty one", "twenty one one"),
    ("thirteen", "thirty"),
    ("one hundred", "one thousand"),
    ("bread and butter", "bread butter"),
    ("the first one", "the one"),
]


@pytest.mark.parametrize(("written", "spoken"), SAME)
def test_two_spellings_of_the_same_speech_agree(written: str, spoken: str) -> None:
    assert canonical(written) == canonical(spoken)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_speech_stays_different(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_canonical_form_is_plain_and_final(text: str) -> None:
    form = canonical(text)
    assert all((word.isdigit() and len(word) == 1) or word.isalpha() for word in form.split())


@given(st.integers(0, 999_999_999))
@settings(max_examples=100, deadline=None)
def test_every_number_agrees_with_the_front_ends_reading(number: int) -> None:
    digits = " ".join(str(number))
    assert canonical(normalize_text(f"{number:,}")) == digits == canonical(f"{number:,}")


@given(st.integers(1, 12), st.integers(1, 59), st.sampled_from(["a.m.", "p.m."]))
@settings(max_examples=60, deadline=None)
def test_every_time_agrees_with_the_front_ends_reading(hour: int, minute: int, half: str) -> None:
    written = f"at {hour}:{minute:02} {half}"
    assert canonical(written) == canonical(normalize_text(written))


@given(st.integers(0, 5000), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_every_price_agrees_with_the_front_ends_reading(whole: int, cents: int) -> None:
    written = f"${whole:,}.{cents:02}"
    assert canonical(written) == canonical(normalize_text(written))
