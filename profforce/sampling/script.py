"""From a request to what a model reads: pieces within the limit, symbols, and what was left out."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from profforce.config import TextFrontEnd
from profforce.errors import UserError, did_you_mean
from profforce.sampling.request import Request
from profforce.text.normalize import collapse_whitespace, expand_english
from profforce.text.sentences import Gap, Piece, split_text
from profforce.text.symbols import END_OF_SENTENCE
from profforce.text.tokenizer import Tokenizer

INVISIBLE = ("Mn", "Me", "Cf")
"""Unicode's categories of marks on letters, around them, and for formatting."""
MAX_NAMED = 8
"""Characters named in one message."""
MAX_SHOWN = 40
"""Characters of a text that a message quotes."""


@dataclass(frozen=True)
class Part:
    """One piece of a request, ready to be spoken."""

    text: str
    gap: Gap
    numbers: list[int]
    """Symbol numbers, end-of-sentence included."""
    identity: int
    """Of the prenet's noise, 32 bits: that of the text as it is read, on every machine."""
    speaker: int


@dataclass(frozen=True)
class Script:
    """One request in parts, never without any."""

    request: Request
    parts: list[Part]
    warnings: list[str]
    """What was left out or cut, for the person who wrote the text."""


class Scripter:
    """Makes scripts for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        speakers: Sequence[str],
        *,
        max_symbols: int,
        speaker: str | None = None,
    ) -> None:
        """``max_symbols`` a piece, end-of-sentence included; ``speaker`` where a request has none.

        Raises :class:`UserError` if there is no such ``speaker``.
        """
        self.tokenizer, self.speakers, self.max_symbols = tokenizer, speakers, max_symbols
        self.speaker = speaker_number(speaker, speakers)
        self._numbers = {symbol: number for number, symbol in enumerate(tokenizer.symbols)}

    def __call__(self, request: Request) -> Script:
        """The script of ``request``.

        Characters the model has no symbol for are left out with a warning, letters in a text that
        is not normalised excepted: those the writer has to mend.

        Raises:
            UserError: naming where the text stands, if nothing in it can be said, it holds such
                letters, or its speaker is not there.
        """
        try:
            speaker = self.speaker
            if request.speaker is not None:
                speaker = speaker_number(request.speaker, self.speakers)
            return self._script(request, speaker)
        except UserError as err:
            raise UserError(str(err), where=request.where) from err

    def _script(self, request: Request, speaker: int) -> Script:
        length = lru_cache(maxsize=2**16)(self._length)  # words come again
        pieces = split_text(request.text, self.max_symbols - 1, measure=length)
        read = self.tokenizer.normalize_many(piece.text for piece in pieces)
        unknown = Counter(s for line in read for s in line if s not in self._numbers)
        self._refuse_letters(request.text, unknown)
        warnings = _left_out(unknown + self._invisible(request.text)) + _torn(pieces)
        parts = []
        for piece, line in zip(pieces, read, strict=True):
            known = collapse_whitespace("".join(s for s in line if s in self._numbers))
            if any(map(str.isalnum, known)):
                numbers = [self._numbers[s] for s in (*known, END_OF_SENTENCE)]
                parts.append(Part(piece.text, piece.gap, numbers, _identity(known), speaker))
            else:
                warnings.append(f"nothing to say in {_quote(piece.text)}")
        if not parts:
            raise UserError(
                "nothing to say in this text",
                got=_quote(request.text),
                expected="at least one letter or digit that the model can say",
            )
        return Script(request, parts, warnings)

    def _length(self, text: str) -> int:
        """Symbols of ``text``; for phonemes its letters written out, about as many."""
        config = self.tokenizer.config
        if config.front_end is not TextFrontEnd.espeak:
            return len(self.tokenizer.normalize(text))
        english = config.normalize and config.language.lower().startswith("en")
        return len(expand_english(text) if english else collapse_whitespace(text))

    def _refuse_letters(self, text: str, unknown: Counter[str]) -> None:
        config = self.tokenizer.config
        raw = config.front_end is TextFrontEnd.ipa or not config.normalize
        if raw and any(symbol.isalnum() for symbol in unknown):
            self.tokenizer.encode(text)

    def _invisible(self, text: str) -> Counter[str]:
        """Characters of which normalisation leaves nothing: joiners, marks of direction, accents.

        An accent counts where it stands alone, not where it is a part of a letter.
        """
        config = self.tokenizer.config
        if config.front_end is not TextFrontEnd.graphemes or not config.normalize:
            return Counter()
        composed = unicodedata.normalize("NFC", text)
        counts = Counter(s for s in composed if unicodedata.category(s) in INVISIBLE)
        gone = [symbol for symbol in counts if not self.tokenizer.normalize(symbol)]
        return Counter({symbol: counts[symbol] for symbol in gone})


def speaker_number(name: str | None, speakers: Sequence[str]) -> int:
    """The number of the speaker ``name``; 0 for None.

    Raises:
        UserError: if there is none of this name.
    """
    if name is None:
        return 0
    if name not in speakers:
        if not speakers:
            raise UserError(
                "this model has no speakers", got=f"speaker={name}", remedy="leave it out"
            )
        known = ", ".join(speakers[:10])
        raise UserError(
            f"no speaker '{name}'" + did_you_mean(name, speakers), where="speaker", expected=known
        )
    return list(speakers).index(name)


def _identity(line: str) -> int:
    digest = hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def _left_out(counts: Counter[str]) -> list[str]:
    if not counts:
        return []
    ordered = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    named = [f"{symbol!r} (U+{ord(symbol):04X}) x{n}" for symbol, n in ordered[:MAX_NAMED]]
    more = len(ordered) - MAX_NAMED
    return ["left out: " + ", ".join(named) + (f" and {more} more" if more > 0 else "")]


def _torn(pieces: Sequence[Piece]) -> list[str]:
    torn = [piece.text for piece in pieces if piece.torn]
    if not torn:
        return []
    first = _quote(torn[0])
    return [f"words longer than the limit were cut in {len(torn)} places, first after {first}"]


def _quote(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…")
