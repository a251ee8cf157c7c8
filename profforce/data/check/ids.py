"""What is wrong with an id: samples and reports are files named after it."""

from collections.abc import Iterator

from profforce.data.check import manifest_kinds as kinds
from profforce.data.check.kinds import Kind
from profforce.data.check.texts import is_control, is_format, named

RESERVED = '<>:"|?*'
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{k}" for port in ("com", "lpt") for k in range(1, 10))]
)
"""File names that Windows keeps for itself, with any suffix."""
MAX_BYTES = 200
"""Leaves room in the 255 bytes of a name for a suffix and a number."""


def id_defects(name: str) -> Iterator[tuple[Kind, str]]:
    """Everything that can be said about an id by itself."""
    hidden = [] if name.isprintable() else [c for c in name if is_control(c) or is_format(c)]
    if hidden:
        yield kinds.ID_INVISIBLE, f"{name!r} with {named(hidden)}"
    if why := _unsafe(name):
        yield kinds.ID_UNSAFE, f"{name[:60]!r}: {why}"


def _unsafe(name: str) -> str | None:
    parts = name.split("/")
    if reserved := [c for c in name if c in RESERVED]:
        return f"holds {reserved[0]!r}"
    if any(part.split(".")[0].lower() in DEVICES for part in parts):
        return "a device's name on Windows"
    if any(part != part.strip(" ") or part.rstrip(".") not in (part, "") for part in parts):
        return "starts or ends with a space, or ends with a dot"
    if name.startswith("-"):
        return "looks like an option"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return f"more than {MAX_BYTES} bytes"
    return None
