"""Texts to speak, from options, a file or standard input."""

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path

from profforce.errors import UserError


def texts_to_speak(given: Sequence[str] | None, source: Path | None) -> list[str]:
    """The texts ``given``, or the lines of ``source`` that are not blank; ``-`` is standard input.

    Raises:
        UserError: both or neither; a file that cannot be read, is not UTF-8 or holds no text.
    """
    if bool(given) == (source is not None):
        raise UserError(
            "give either --text TEXT or --input FILE",
            got="both" if given else "neither",
            remedy="see profforce sample -h",
        )
    if source is None:
        return list(given or [])
    where = "standard input" if str(source) == "-" else str(source)
    try:
        raw = sys.stdin.buffer.read() if str(source) == "-" else source.read_bytes()
    except OSError as err:
        raise UserError("cannot be read", where=where, got=err.strerror) from err
    texts = [line for line in _decoded(raw, where).splitlines() if line.strip()]
    if not texts:
        raise UserError("holds no text", where=where, expected="a text a line")
    return texts


def _decoded(raw: bytes, where: str) -> str:
    """UTF-8, with or without a byte order mark."""
    body = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as err:
        position = err.start + len(raw) - len(body)
        raise UserError(
            "is not UTF-8",
            where=f"{where}:{raw.count(10, 0, position) + 1}",
            got=f"byte 0x{raw[position]:02x} at {position}",
            remedy="save it as UTF-8",
        ) from err
