"""From odd text to what is spoken: dropped, cut or refused, and always said so in one line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import TextConfig, TextFrontEnd
from profforce.errors import UserError
from profforce.sampling.request import Request
from profforce.sampling.script import Script, Scripter, speaker_number
from profforce.text.sentences import Gap
from profforce.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(TextConfig())


def script(
    text: str, *, limit: int = 60, tokenizer: Tokenizer = TOKENIZER, speaker: str | None = None
) -> Script:
    scripter = Scripter(tokenizer, ("ann", "bob"), max_symbols=limit)
    return scripter(Request(text, "a.txt:7", speaker=speaker))


def read(made: Script) -> list[str]:
    return [TOKENIZER.decode(part.numbers) for part in made.parts]


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="ab .!?,\n\U0001f980\x00\u202e7$", max_size=200))
def test_any_text_is_spoken_within_the_limit_or_refused_in_one_line(text: str) -> None:
    try:
        made = script(text)
    except UserError as err:
        assert str(err).startswith("a.txt:7: ") and "\n" not in str(err)
        return
    assert made.parts
    for part in made.parts:
        assert 2 <= len(part.numbers) <= 60 or len(part.text) == 1
        assert 0 <= part.identity < 2**32
    assert all("\n" not in warning for warning in made.warnings)
    assert made == script(text)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("a", "a"),
        ("7", "seven"),
        ("hello " * 3, "hello hello hello"),
        ("see http://a.org/b?c=d", "see http: slash slash a dot org slash b?c equals d"),
        ("Привет שלום 你好", "privet slvm nihao"),
        ("½ cup", "one half cup"),
    ],
    ids=["letter", "digit", "repeated", "url", "scripts", "fraction"],
)
def test_odd_texts_are_read(text: str, spoken: str) -> None:
    made = script(text, limit=200)
    assert read(made) == [spoken]
    assert made.warnings == []


@pytest.mark.parametrize(
    ("text", "spoken", "warning"),
    [
        ("crab \U0001f980\U0001f980", "crab", "left out: '\U0001f980' (U+1F980) x2"),
        ("a\x00b", "ab", r"left out: '\x00' (U+0000) x1"),
        ("a\u202eb", "ab", r"left out: '\u202e' (U+202E) x1"),
        ("e\u0301x\u0301", "ex", "left out: '\u0301' (U+0301) x1"),
        ("\U00013000 one", "one", "left out: '\U00013000' (U+13000) x1"),
    ],
    ids=["emoji", "nul", "direction", "accent", "hieroglyph"],
)
def test_what_is_left_out_is_said(text: str, spoken: str, warning: str) -> None:
    made = script(text)
    assert (read(made), made.warnings) == ([spoken], [warning])


def test_many_characters_are_named_in_one_warning() -> None:
    made = script("a " + "".join(map(chr, range(0x1F600, 0x1F614))))
    assert len(made.warnings) == 1 and made.warnings[0].endswith("x1 and 12 more")


def test_long_text_falls_into_pieces_and_torn_words_are_told() -> None:
    made = script("One is short. " + "x" * 130 + " and more.\n\nA new paragraph begins here.")
    assert [part.gap for part in made.parts][-2:] == [Gap.paragraph, Gap.paragraph]
    assert made.warnings == [
        "words longer than the limit were cut in 2 places, first after "
        "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'"
    ]
    assert all(len(part.numbers) <= 60 for part in made.parts)


def test_a_piece_with_nothing_to_say_is_left_out_with_a_warning() -> None:
    made = script("Well.\n\n\U0001f980\n\nYes.")
    assert read(made) == ["well.", "yes."]
    assert made.warnings == [
        "left out: '\U0001f980' (U+1F980) x1",
        "nothing to say in '\U0001f980'",
    ]


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "!?", "\U0001f980", "\x00", "\u202e"])
def test_nothing_to_say_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(UserError, match=r"^a\.txt:7: nothing to say in this text; got"):
        script(text)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (TextConfig(normalize=False), "Capital"),
        (TextConfig(normalize=False), "7 up"),
        (TextConfig(front_end=TextFrontEnd.ipa), "HELLO"),
    ],
)
def test_letters_of_raw_symbols_are_refused_not_dropped(config: TextConfig, text: str) -> None:
    with pytest.raises(UserError, match=r"^a\.txt:7: .*symbols outside the alphabet"):
        script(text, tokenizer=Tokenizer(config))
    made = script("hello \U0001f980", tokenizer=Tokenizer(config))
    assert made.warnings == ["left out: '\U0001f980' (U+1F980) x1"]


def test_the_noise_depends_on_what_is_read() -> None:
    first, same, other = (script(text).parts[0].identity for text in ("Five.", " 5. ", "Six."))
    assert first == same != other


def test_each_request_may_have_its_speaker() -> None:
    assert script("a").parts[0].speaker == 0
    assert script("a", speaker="bob").parts[0].speaker == 1
    with pytest.raises(UserError, match=r"^a\.txt:7: .*no speaker 'bop'; did you mean 'bob'"):
        script("a", speaker="bop")
    with pytest.raises(UserError, match="no speaker 'eve'"):
        Scripter(TOKENIZER, ("ann",), max_symbols=60, speaker="eve")
    with pytest.raises(UserError, match="this model has no speakers; got speaker=bob"):
        speaker_number("bob", ())
