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
    """Write UTF-8 ``text`` with ``\\n`` line ends; a device or a pipe is written to, not replaced.

    Raises:
        UserError: if it cannot be written.
    """
    if path.is_dir():  # also the empty name, which stands for the folder one is in
        raise UserError(f"cannot write the file ({os.strerror(errno.EISDIR)})", where=path)
    part = aside(path)
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write the file ({error.strerror})", where=path) from error
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as readable JSON."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
