"""Text to symbol numbers and back. S symbols an utterance, the last being end-of-sentence."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from profforce.config import TextConfig, TextFrontEnd
from profforce.errors import UserError
from profforce.text.espeak import phonemize
from profforce.text.normalize import collapse_whitespace, expand_english, normalize_text
from profforce.text.symbols import END_OF_SENTENCE, GRAPHEMES, IPA, SPECIAL

MAX_NAMED = 8
"""Unknown symbols named in one error."""


class Tokenizer:
    """Front end of one model; it travels in the checkpoint's meta data."""

    def __init__(self, config: TextConfig, symbols: Sequence[str] | None = None) -> None:
        """``symbols`` is the alphabet of an older checkpoint; that of the front end when unset."""
        self.config = config
        default = GRAPHEMES if config.front_end is TextFrontEnd.graphemes else IPA
        self.symbols: tuple[str, ...] = tuple(default if symbols is None else symbols)
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        if self.symbols[0] != SPECIAL[0] or END_OF_SENTENCE not in self._numbers:
            raise ValueError(f"an alphabet starts with {SPECIAL}, got {self.symbols[:2]}")

    @property
    def gap(self) -> int | None:
        """Number of the space between words; None where the alphabet has none."""
        return self._numbers.get(" ")

    def normalize(self, text: str) -> str:
        """The string whose characters are looked up in the alphabet."""
        return self.normalize_many([text])[0]

    def normalize_many(self, texts: Iterable[str]) -> list[str]:
        """As :meth:`normalize` for each text; phonemes are asked for in one call."""
        config = self.config
        if config.front_end is TextFrontEnd.ipa:
            return [_decompose(text) for text in texts]
        if config.front_end is TextFrontEnd.espeak:
            english = config.normalize and config.language.lower().startswith("en")
            lines = [collapse_whitespace(expand_english(t) if english else t) for t in texts]
            return [_decompose(line) for line in phonemize(lines, config.language)]
        if config.normalize:
            return [normalize_text(text, language=config.language) for text in texts]
        return [collapse_whitespace(unicodedata.normalize("NFC", text)) for text in texts]

    def encode(self, text: str, *, drop_unknown: bool = False) -> list[int]:
        """Symbol numbers of ``text``, normalised first, with end-of-sentence appended.

        Raises :class:`UserError` when nothing is left to say, or naming the symbols outside the
        alphabet. ``drop_unknown`` leaves those out, for a corpus that was already reported.
        """
        return self.encode_many([text], drop_unknown=drop_unknown)[0]

    def encode_many(self, texts: Sequence[str], *, drop_unknown: bool = False) -> list[list[int]]:
        """As :meth:`encode` for each text; phonemes are asked for in one call."""
        spoken = self.normalize_many(texts)
        return [self._encode(*pair, drop_unknown) for pair in zip(texts, spoken, strict=True)]

    def encode_normalized(self, text: str, spoken: str, *, drop_unknown: bool = False) -> list[int]:
        """As :meth:`encode` for a ``text`` that :meth:`normalize_many` made ``spoken`` of."""
        return self._encode(text, spoken, drop_unknown)

    def knows(self, spoken: str) -> bool:
        """Whether every symbol of a normalised text is in the alphabet."""
        return self._numbers.keys() >= set(spoken)

    def unknown_symbols(self, text: str) -> Counter[str]:
        """How often each symbol outside the alphabet occurs in ``text`` once normalised."""
        return Counter(symbol for symbol in self.normalize(text) if symbol not in self._numbers)

    def decode(self, numbers: Iterable[int]) -> str:
        """The normalised text of symbol ``numbers``, without padding and end-of-sentence."""
        named = (self.symbols[number] for number in numbers)
        return "".join(symbol for symbol in named if symbol not in SPECIAL)

    def to_meta(self) -> dict[str, object]:
        """JSON-able description; :meth:`from_meta` makes an equal tokenizer of it."""
        return {"text": asdict(self.config), "symbols": list(self.symbols)}

    @classmethod
    def from_meta(cls, meta: Mapping[str, object]) -> "Tokenizer":
        """The tokenizer that :meth:`to_meta` described."""
        text, symbols = meta.get("text"), meta.get("symbols")
        if not isinstance(text, Mapping) or not isinstance(symbols, list):
            raise ValueError(f"tokenizer meta needs 'text' and 'symbols', got {sorted(meta)}")
        front_end = TextFrontEnd(text["front_end"])
        return cls(TextConfig(**{**text, "front_end": front_end}), symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_meta() == other.to_meta()

    def __hash__(self) -> int:
        return hash(self.symbols)

    def _encode(self, text: str, spoken: str, drop_unknown: bool) -> list[int]:
        numbers = [self._numbers[symbol] for symbol in spoken if symbol in self._numbers]
        if len(numbers) < len(spoken) and not drop_unknown:
            unknown = Counter(symbol for symbol in spoken if symbol not in self._numbers)
            raise UserError(
                "text holds symbols outside the alphabet",
                where=_quote(text),
                got=_name(unknown),
                expected=f"symbols of the front end '{self.config.front_end}'",
                remedy=self._remedy(),
            )
        if not any(symbol.isalnum() for symbol in spoken if symbol in self._numbers):
            raise UserError(
                "nothing to say in this text",
                where=_quote(text),
                got=_quote(spoken),
                expected="at least one letter or digit",
            )
        return [*numbers, self._numbers[END_OF_SENTENCE]]

    def _remedy(self) -> str:
        if self.config.front_end is TextFrontEnd.graphemes and not self.config.normalize:
            return "set text.normalize=true or rewrite the text"
        return "rewrite the text without them"


def _decompose(text: str) -> str:
    return collapse_whitespace(unicodedata.normalize("NFD", text))


def _name(unknown: Counter[str]) -> str:
    rows = [
        f"{symbol!r} (U+{ord(symbol):04X}) x{count}"
        for symbol, count in unknown.most_common(MAX_NAMED)
    ]
    more = len(unknown) - MAX_NAMED
    return ", ".join(rows) + (f" and {more} more" if more > 0 else "")


def _quote(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
