"""Names of output files that every file system takes, and that depend on the request alone."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from anyascii import anyascii

from profforce.errors import UserError
from profforce.sampling.request import Request

SLUG_LENGTH = 40
ID_LENGTH = 80
"""Longer ids are shortened; names of 255 bytes are the limit of most file systems."""
RESERVED = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)]
)
"""Devices of Windows, whatever their suffix."""
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def slug(text: str) -> str:
    """A file name's worth of ``text``: lower-case ASCII words joined by hyphens, never empty."""
    words = re.sub(r"[^a-z0-9]+", "-", anyascii(text[: 4 * SLUG_LENGTH]).lower()).strip("-")
    return words[:SLUG_LENGTH].rstrip("-") or "text"


def stems(requests: Sequence[Request]) -> list[str]:
    """File names without suffix, no two the same even where case does not matter.

    An id that is a safe name is taken as it is; of another (``../a``, ``NUL``, ids that differ in
    case alone) the readable part is kept and a digest appended. Without an id it is
    ``NNNN-words``.

    Raises:
        UserError: if an id is there twice, or a name would be.
    """
    folded = Counter(request.id.casefold() for request in requests if request.id is not None)
    found: dict[str, Request] = {}
    names = []
    for number, request in enumerate(requests, 1):
        if request.id is None:
            name = f"{number:04}-{slug(request.text)}"
        else:
            name = _named(request.id, alone=folded[request.id.casefold()] == 1)
        other = found.setdefault(name.casefold(), request)
        if other is not request:
            same = request.id is not None and request.id == other.id
            raise UserError(
                "the id is there twice" if same else "its files would be called as another text's",
                where=request.where,
                got=f"{request.id if same else name!r}, as in {other.where}",
                expected="each id once",
            )
        names.append(name)
    return names


def _named(identity: str, *, alone: bool) -> str:
    safe = len(identity) <= ID_LENGTH and _SAFE.fullmatch(identity)
    if safe and alone and identity.casefold() not in RESERVED:
        return identity
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{slug(identity)}-{digest}"
