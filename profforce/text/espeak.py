"""Phonemes from an installed espeak-ng program, called as a process and never linked."""

import re
import shutil
import subprocess
from collections.abc import Sequence

from profforce.errors import UserError

PROGRAM = "espeak-ng"
TIMEOUT_S = 600
PAUSES = ",.;:!?"
"""Marks espeak-ng swallows; each piece between them is read by itself and they are put back."""

_PIECE = re.compile(f"([{re.escape(PAUSES)}]+(?=\\s|$))")
_LANGUAGE_SWITCH = re.compile(r"\([a-z][a-z-]*\)")


def phonemize(lines: Sequence[str], language: str) -> list[str]:
    """IPA of each of ``lines``, in order and with its punctuation, by one call of the program.

    Raises :class:`UserError` when espeak-ng is missing, does not know ``language`` or fails.
    """
    split = [_PIECE.split(" ".join(line.split())) for line in lines]
    pieces = [piece.strip() for parts in split for piece in parts[::2] if _speakable(piece)]
    spoken = iter(_call(pieces, language) if pieces else [])
    joined = []
    for parts in split:
        read = [next(spoken) if _speakable(piece) else "" for piece in parts[::2]]
        marks = [*parts[1::2], ""]
        joined.append("".join(f"{p}{mark} " for p, mark in zip(read, marks, strict=True)).strip())
    return joined


def _speakable(piece: str) -> bool:
    return any(symbol.isalnum() for symbol in piece)


def _call(pieces: Sequence[str], language: str) -> list[str]:
    """IPA of each piece; espeak-ng answers a line of input with a line of output."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise UserError(
            f"the program {PROGRAM} is not installed",
            where="text.front_end=espeak",
            remedy="install espeak-ng with the system's package manager, "
            "or set text.front_end=graphemes",
        )
    command = [program, "-q", "--ipa", "-b", "1", "-v", language, "--stdin"]
    try:
        done = subprocess.run(
            command,
            input="".join(f"{piece}\n\n" for piece in pieces),
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{PROGRAM} failed ({error})", where="text.front_end=espeak") from error
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        raise UserError(
            f"{PROGRAM} failed ({reason[0] if reason else f'exit {done.returncode}'})",
            where=f"text.language={language}",
            remedy=f"see {PROGRAM} --voices for the languages it knows",
        )
    answers = [line for line in map(_clean, done.stdout.splitlines()) if line]
    if len(answers) != len(pieces):
        return _one_by_one(pieces, language, answers)
    return answers


def _one_by_one(pieces: Sequence[str], language: str, answers: Sequence[str]) -> list[str]:
    """For texts that espeak-ng breaks into clauses of its own: one call a piece."""
    if len(pieces) == 1:
        return [" ".join(answers)]
    return [_call([piece], language)[0] for piece in pieces]


def _clean(line: str) -> str:
    return " ".join(_LANGUAGE_SWITCH.sub("", line).split())
