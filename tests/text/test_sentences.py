"""Long text in pieces: where sentences end, where long ones are cut, and laws for any text."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.text.normalize import normalize_text
from profforce.text.sentences import Gap, Piece, split_text

PARTS = [
    *("Mr. ", "e.g. ", "U.S. ", "No. 5 ", "3.14 ", "J. K. ", "... ", "10:30 ", "$1,000,000 "),
    *("http://a.b/c?d=e. ", "a@b.co ", '"Yes!" ', "he said. ", "\n", "\n\n", "。", "？」", "漢字"),
    *("word", " ", ", ", " and ", "x" * 70, "é", "e\u0301", "\U0001f980", "\u202e", "\x00", "!?"),
]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=8), max_size=40).map("".join)


def spoken_length(text: str) -> int:
    return len(normalize_text(text))


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS,
    limit=st.integers(20, 90),
    measure=st.sampled_from([len, spoken_length]),
)
def test_laws(text: str, limit: int, measure: Callable[[str], int]) -> None:
    pieces = split_text(text, limit, measure=measure)
    assert "".join("".join(p.text.split()) for p in pieces) == "".join(text.split())
    for piece in pieces:
        assert piece.text and piece.text == piece.text.strip()
        assert measure(piece.text) <= limit or len(piece.text) == 1
    assert pieces == split_text(text, limit, measure=measure)
    if pieces:
        assert pieces[-1].gap is Gap.paragraph


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, limit=st.integers(1, 90))
def test_words_are_torn_only_if_they_are_longer_than_the_limit(text: str, limit: int) -> None:
    longest = max(map(len, text.split()), default=0)
    if longest <= limit:
        assert not any(piece.torn for piece in split_text(text, limit))


@settings(max_examples=50, deadline=None)
@given(text=st.text(alphabet="abc ", max_size=40))
def test_a_text_of_one_sentence_within_the_limit_stays_whole(text: str) -> None:
    assert [p.text for p in split_text(text, 40)] == [" ".join(text.split())] * bool(text.strip())


WHOLE = [
    "Mr. Smith met Dr. Jones.",
    "He left at 4:30 p.m. on Jan. 5 with No. 7.",
    "It costs $3.14, e.g. at http://shop.com/a.b?c=d or by a@b.co.uk today.",
    "J. R. R. Tolkien lived in the U.K. for years.",
    "The U.S. Army came.",
    "Well... maybe he will.",
    '"Really?" she asked.',
    "1. Buy the milk.",
    "Salt, pepper etc. are there.",
    "Is that Yahoo! or what is it.",
    "It is (see p. 5) over there.",
]


@pytest.mark.parametrize("text", WHOLE)
def test_what_is_no_end_of_a_sentence(text: str) -> None:
    # so long a neighbour that nothing is joined, whatever the limit does to short sentences
    other = "Then came a sentence of such a length that nobody would ever want to join it to it."
    assert [p.text for p in split_text(f"{text} {other}", 85)] == [text, other]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("She went to the U.S. The army came.", ["She went to the U.S.", "The army came."]),
        ('"Go away!" He left at once.', ['"Go away!"', "He left at once."]),
        ("He stopped (at last.) She did not.", ["He stopped (at last.)", "She did not."]),
        ("Is it so?! It is not so.", ["Is it so?!", "It is not so."]),
        ("Wait for me... Nobody did.", ["Wait for me...", "Nobody did."]),
        ("all in small. nothing large. here", ["all in small.", "nothing large.", "here"]),
        ("The answer is no. I am sure.", ["The answer is no.", "I am sure."]),
        ("We paid 3.14 then. We left.", ["We paid 3.14 then.", "We left."]),
        (
            "你好吗朋友。再见了朋友！好的呀「是吗？」",
            ["你好吗朋友。", "再见了朋友！", "好的呀「是吗？」"],
        ),
    ],
)
def test_ends_of_sentences(text: str, parts: list[str]) -> None:
    limit = max(map(len, parts)) + 1
    assert [p.text for p in split_text(text, limit)] == parts


def test_paragraphs_and_lines() -> None:
    pieces = split_text("One line\nof a text.\n \nAnother\r\n\r\n\r\nThird", 40)
    assert pieces == [
        Piece("One line of a text.", Gap.paragraph),
        Piece("Another", Gap.paragraph),
        Piece("Third", Gap.paragraph),
    ]


def test_short_sentences_are_joined_and_long_ones_are_not() -> None:
    assert [p.text for p in split_text("Yes. No. Well, maybe. Why?", 100)] == [
        "Yes. No. Well, maybe. Why?"
    ]
    long = "This one is a sentence that is long enough to stand alone."
    assert [p.text for p in split_text(f"{long} {long}", 200)] == [long, long]
    assert [p.text for p in split_text(f"{long} — !! {long}", 200)] == [f"{long} — !!", long]


def test_without_an_end_it_is_cut_at_a_mark_then_a_conjunction_then_a_space() -> None:
    assert [(p.text, p.gap) for p in split_text("aa bb cc, dd ee ff and gg hh ii jj", 26)] == [
        ("aa bb cc,", Gap.clause),
        ("dd ee ff and gg hh ii jj", Gap.paragraph),
    ]
    assert [(p.text, p.gap) for p in split_text("aa bb cc dd ee and gg hh ii jj", 26)] == [
        ("aa bb cc dd ee", Gap.word),
        ("and gg hh ii jj", Gap.paragraph),
    ]
    assert [p.text for p in split_text("aa bb cc dd ee ff gg hh", 20)] == [
        "aa bb cc dd",
        "ee ff gg hh",
    ]


def test_two_thousand_characters_without_a_mark_fall_into_like_parts() -> None:
    text = " ".join(["word", "nothing", "it", "several"] * 85)
    sizes = [len(piece.text) for piece in split_text(text, 200)]
    assert len(text) > 1900 and min(sizes) > 120 and max(sizes) <= 200
    assert len(sizes) == -(-len(text) // 200) or len(sizes) == -(-len(text) // 200) + 1


def test_a_word_of_two_thousand_letters_is_torn_and_says_so() -> None:
    pieces = split_text("Before " + "x" * 2000 + " after.", 200)
    assert [len(p.text) for p in pieces] == [6, *[200] * 10, 6]
    assert [p.torn for p in pieces] == [False, *[True] * 9, False, False]


def test_a_word_is_torn_after_a_sign_and_never_before_an_accent() -> None:
    url = "http://example.com/one/two-three/four?five=six"
    assert [p.text for p in split_text(url, 30)] == [
        "http://example.com/one/two-",
        "three/four?five=six",
    ]
    accents = split_text("e\u0301" * 30, 21)
    assert all(not p.text.startswith("\u0301") for p in accents) and len(accents) == 3


def test_the_limit_counts_what_is_spoken() -> None:
    pieces = split_text("We paid $1,234,567.89 and then $9,876,543.21 too", 100, measure=len)
    assert len(pieces) == 1
    spoken = split_text(pieces[0].text, 100, measure=spoken_length)
    assert len(spoken) > 1 and all(spoken_length(p.text) <= 100 for p in spoken)


def test_no_text_has_no_piece_and_a_limit_of_nothing_is_refused() -> None:
    assert split_text(" \n\t ", 10) == []
    with pytest.raises(ValueError, match="max_symbols must be >= 1, got 0"):
        split_text("a", 0)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 20000,
        "x" * 100_000,
        "!" * 100_000,
        "a. " * 33_000,
        ".!" * 50_000 + "x",
        "漢" * 30000,
    ],
    ids=["words", "letters", "marks", "sentences", "ends", "ideographs"],
)
def test_a_hundred_kilobytes_take_linear_time(text: str) -> None:
    began = time.process_time()
    split_text(text, 200)
    assert time.process_time() - began < 10


def test_a_megabyte_without_a_space_is_torn_in_linear_time() -> None:
    began = time.process_time()
    pieces = split_text("?" * 2_000_000, 20)
    assert sum(len(piece.text) for piece in pieces) == 2_000_000
    assert time.process_time() - began < 15  # quadratic: a hundred thousand copies of the rest
