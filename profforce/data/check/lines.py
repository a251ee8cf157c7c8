"""A manifest's lines: bytes to text, streamed."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from profforce.data.check import manifest_kinds as kinds
from profforce.data.check.kinds import DefectError

MAX_LINE_BYTES = 2**20
"""Far beyond any sentence: a longer line is a file without line ends, and is not held in memory."""
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines with their ends, cut beyond :data:`MAX_LINE_BYTES`; the file is streamed.

    Lines end at ``\\n`` alone; ``str.splitlines`` would split at more.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                rest = line
                while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE_BYTES + 1)
                yield number, line
    except OSError as error:
        what = f"cannot read the manifest ({error.strerror})"
        raise DefectError(kinds.MANIFEST_UNREADABLE, where=path, what=what) from error


def decode_line(where: str, number: int, raw: bytes) -> str:
    """The text of line ``number`` without white space at its ends; empty for a blank line."""
    if len(raw) > MAX_LINE_BYTES:
        raise DefectError(kinds.LINE_LONG, where=where, got=f"more than {MAX_LINE_BYTES} bytes")
    if number == 1:
        if raw.startswith(UTF16_MARKS):
            raise DefectError(kinds.MANIFEST_UTF16, where=where, got=f"the bytes {raw[:2]!r}")
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        got = f"byte 0x{raw[error.start]:02x}"
        raise DefectError(kinds.LINE_ENCODING, where=where, got=got) from error
    if "\r" in text:
        got = repr(text[max(0, text.index("\r") - 20) :][:40])
        raise DefectError(kinds.LINE_BARE_CR, where=where, got=got)
    return text
