"""How the library tells how far it is; the command line renders it."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (label, done, total)."""


def silent(label: str, done: int, total: int) -> None:
    """Show nothing."""
