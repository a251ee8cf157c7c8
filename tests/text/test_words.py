"""What a text says, without how it is marked."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from profforce.text.words import letters_in, words_in


def test_case_and_punctuation_say_nothing() -> None:
    assert words_in("...To leave, press 1!") == words_in("to leave press 1") == "to leave press 1"
    assert words_in("_so-called_ Ärger") == "so called ärger"
    assert words_in("...") == letters_in("…") == ""


def test_a_space_tells_words_apart_but_not_letters() -> None:
    assert words_in("a nice") != words_in("an ice")
    assert letters_in("A nice") == letters_in("an ice.") == "anice"


def test_a_vowel_sign_is_a_letter() -> None:
    assert words_in("दिन") != words_in("दान")
    assert letters_in("दिन।") == letters_in("दिन") != letters_in("दान")


@given(st.text(max_size=20))
def test_how_an_accent_is_encoded_says_nothing(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert words_in(composed) == words_in(unicodedata.normalize("NFD", text))


@given(st.text(st.characters(max_codepoint=127), max_size=20))
def test_short_cut_for_ascii_takes_the_same_way(text: str) -> None:
    assert words_in(text + " ä") == f"{words_in(text)} ä".strip()
