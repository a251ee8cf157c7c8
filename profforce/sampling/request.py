"""What somebody wants spoken. Nothing here needs torch."""

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
