import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import TextConfig, TextFrontEnd
from profforce.errors import UserError
from profforce.text.symbols import END_OF_SENTENCE, GRAPHEMES, IPA, PADDING
from profforce.text.tokenizer import Tokenizer

RAW = TextConfig(normalize=False)
PHONETIC = TextConfig(front_end=TextFrontEnd.ipa)


@pytest.mark.parametrize("alphabet", [GRAPHEMES, IPA], ids=["graphemes", "ipa"])
def test_alphabets_are_sets_that_begin_with_padding(alphabet: tuple[str, ...]) -> None:
    assert len(set(alphabet)) == len(alphabet)
    assert alphabet[:2] == (PADDING, END_OF_SENTENCE)
    assert all(len(symbol) == 1 for symbol in alphabet[2:])


def test_a_sentence_round_trips_and_ends_once() -> None:
    tokenizer = Tokenizer(TextConfig())
    numbers = tokenizer.encode("  Set 2 timers, please! ")
    assert tokenizer.decode(numbers) == "set two timers, please!"
    end = tokenizer.symbols.index(END_OF_SENTENCE)
    assert numbers[-1] == end and numbers.count(end) == 1 and 0 not in numbers


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_encoding_keeps_every_symbol_or_says_which_it_cannot(text: str) -> None:
    tokenizer = Tokenizer(TextConfig())
    unknown = tokenizer.unknown_symbols(text)
    try:
        numbers = tokenizer.encode(text)
    except UserError as error:
        assert "\n" not in str(error)
        assert unknown or not any(symbol.isalnum() for symbol in tokenizer.normalize(text))
    else:
        assert not unknown and tokenizer.decode(numbers) == tokenizer.normalize(text)


def test_unknown_symbols_are_named_and_counted() -> None:
    tokenizer = Tokenizer(TextConfig())
    assert tokenizer.unknown_symbols("😀 hello 😀 ♫") == Counter({"😀": 2, "♫": 1})
    with pytest.raises(UserError, match=r"'😀' \(U\+1F600\) x2, '♫'"):
        tokenizer.encode("😀 hello 😀 ♫")
    dropped = tokenizer.encode("😀 hello", drop_unknown=True)
    assert tokenizer.decode(dropped).strip() == "hello"


@pytest.mark.parametrize("text", ["", "   ", "\n", "...", "?!", "-"])
def test_nothing_to_say_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="nothing to say"):
        Tokenizer(TextConfig()).encode(text)
    with pytest.raises(UserError, match="nothing to say"):
        Tokenizer(TextConfig()).encode(f"{text}♫", drop_unknown=True)


def test_without_normalisation_text_is_taken_as_written() -> None:
    tokenizer = Tokenizer(RAW)
    assert tokenizer.decode(tokenizer.encode("two  words")) == "two words"
    assert tokenizer.normalize("Cafe\u0301 5") == "Café 5"
    with pytest.raises(UserError, match=r"text\.normalize=true"):
        tokenizer.encode("Set 5")


def test_ipa_is_decomposed_and_kept() -> None:
    tokenizer = Tokenizer(PHONETIC)
    text = "həlˈoʊ, wˈɜːld! bɔ̃ ʒuʁ ça t͡ʃ"
    assert not tokenizer.unknown_symbols(text)
    numbers = tokenizer.encode(text)
    assert len(numbers) == len(tokenizer.normalize(text)) + 1
    with pytest.raises(UserError, match="'5'"):
        tokenizer.encode("5")


@pytest.mark.parametrize("config", [TextConfig(), RAW, PHONETIC], ids=["default", "raw", "ipa"])
def test_meta_survives_json(config: TextConfig) -> None:
    tokenizer = Tokenizer(config)
    again = Tokenizer.from_meta(json.loads(json.dumps(tokenizer.to_meta())))
    assert again == tokenizer and again.symbols == tokenizer.symbols
    assert isinstance(again.config.front_end, TextFrontEnd)
    assert again.encode("abc") == tokenizer.encode("abc")


def test_an_older_alphabet_keeps_its_numbers() -> None:
    older = Tokenizer.from_meta(
        {"text": {"front_end": "graphemes"}, "symbols": [PADDING, END_OF_SENTENCE, "b", "a"]}
    )
    assert older.encode("ab") == [3, 2, 1]
    with pytest.raises(UserError, match="'c'"):
        older.encode("abc")
    with pytest.raises(ValueError, match="tokenizer meta"):
        Tokenizer.from_meta({"symbols": []})
    with pytest.raises(ValueError, match="alphabet starts with"):
        Tokenizer(TextConfig(), ["a", "b"])
