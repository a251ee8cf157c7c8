"""Texts to speak, from options, a file or standard input."""

import codecs
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profforce.errors import UserError, did_you_mean
from profforce.sampling.request import Request

JSON_SUFFIXES = (".jsonl", ".ndjson")
KEYS = ("text", "id", "speaker")
_LINE_END = re.compile(r"\r\n|\n|\r")
"""Not those of ``str.splitlines``, so that numbers of lines are those an editor shows."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def texts_to_speak(given: Sequence[str] | None, source: Path | None) -> list[Request]:
    """The texts ``given``, or the lines of ``source`` that are not blank; ``-`` is standard input.

    A file called ``.jsonl`` has an object a line: ``text``, and if you like ``id`` and
    ``speaker``. Standard input has, if its first line is an object with a text.

    Raises:
        UserError: both or neither; a file that cannot be read, is not UTF-8 or holds no text; a
            line that is no such object.
    """
    if bool(given) == (source is not None):
        raise UserError(
            "give either --text TEXT or --input FILE",
            got="both" if given else "neither",
            remedy="see profforce sample -h",
        )
    if source is None:
        return [_checked(Request(t, f"text {n}")) for n, t in enumerate(given or [], 1)]
    where = "standard input" if str(source) == "-" else str(source)
    try:
        raw = sys.stdin.buffer.read() if str(source) == "-" else source.read_bytes()
    except OSError as err:
        raise UserError("cannot be read", where=where, got=err.strerror) from err
    lines = enumerate(_LINE_END.split(_decoded(raw, where)), 1)
    rows = [(line, f"{where}:{number}") for number, line in lines if line.strip()]
    if not rows:
        raise UserError("holds no text", where=where, expected="a text a line")
    if source.suffix.lower() in JSON_SUFFIXES or (str(source) == "-" and _is_object(rows[0][0])):
        return [_checked(_from_json(*row)) for row in rows]
    return [Request(*row) for row in rows]


def _is_object(line: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "text" in row


def _from_json(line: str, where: str) -> Request:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise UserError("is not JSON", where=where, got=str(err)) from err
    example = '{"text": "Hello.", "id": "a1", "speaker": "ann"}'
    if not isinstance(row, dict) or "text" not in row:
        raise UserError("has no text", where=where, got=line[:60], expected=example)
    for key in KEYS:
        value = row.get(key)
        if not isinstance(value, str) and (value is not None or key == "text"):
            got = json.dumps(value)[:60]
            raise UserError(f"{key} is not a string", where=where, got=got, expected=example)
    for key in row:  # others, such as those of a manifest, do not matter
        hint = did_you_mean(key, [known for known in KEYS if known not in row])
        if key not in KEYS and hint:
            raise UserError(f"unknown key {key!r}{hint}", where=where, expected=example)
    if row.get("id") is not None and not row["id"].strip():
        raise UserError("the id is empty", where=where, remedy="leave it out or give one")
    return Request(row["text"], where, row.get("id"), row.get("speaker"))


def _checked(request: Request) -> Request:
    """Bytes of the command line that are no UTF-8, and half characters of JSON, are refused."""
    for value in (request.text, request.id or "", request.speaker or ""):
        found = _SURROGATE.search(value)
        if found:
            raise UserError(
                "is no valid Unicode",
                where=request.where,
                got=f"half a character, U+{ord(found[0]):04X}, at {found.start() + 1}",
                remedy="write it in UTF-8",
            )
    return request


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
