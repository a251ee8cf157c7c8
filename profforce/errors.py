"""The one error type for what a person can mend."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend; the command line shows it as one line.

    The message says what is wrong, where, what was found, what was expected and what to do.
    """

    exit_code = 2
    """Of the command; 1 where the command line was right and the task failed."""

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        got: object = None,
        expected: object = None,
        remedy: str | None = None,
    ) -> None:
        parts = [what if where is None else f"{where}: {what}"]
        if got is not None:
            parts.append(f"got {got}")
        if expected is not None:
            parts.append(f"expected {expected}")
        if remedy is not None:
            parts.append(remedy)
        super().__init__(" ".join("; ".join(parts).split()))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest of ``known``, or an empty string."""
    hits = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{hits[0]}'?" if hits and hits[0] != word else ""
