"""Files that appear whole or not at all."""

import errno
import json
import os
from pathlib import Path

from profforce.errors import UserError


def aside(path: Path) -> Path:
    """Where this process writes before it renames to ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 ``text`` with ``\\n`` line ends.

    A device or a pipe is written to, not replaced, and a link stays one: ``/dev/stdout`` is a link
    to a file where a shell sends the output into a file.

    Raises:
        UserError: if it cannot be written.
    """
    if path.is_dir():  # also the empty name, which stands for the folder one is in
        raise UserError(f"cannot write the file ({os.strerror(errno.EISDIR)})", where=path)
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", newline="\n")
        else:
            _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", where=path) from error


def _replace(path: Path, text: str) -> None:
    part = aside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as readable JSON."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
