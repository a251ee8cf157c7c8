"""What somebody wants spoken. Nothing here needs torch."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One text, of any length."""

    text: str
    where: str
    """Where it stands, for messages: ``text 3``, ``lines.txt:3``."""
    id: str | None = None
    """What its files are to be called; their number and first words when None."""
    speaker: str | None = None
    """The run's or the settings' own when None."""


def requests_of(texts: Iterable[str | Request]) -> list[Request]:
    """``texts``, of which plain ones are named by their number."""
    return [
        Request(text, f"text {number}") if isinstance(text, str) else text
        for number, text in enumerate(texts, 1)
    ]
