"""Which side of the split a text is on."""

import hashlib

from profforce.text.normalize import normalize_text

HASH_RANGE = 2**64


def is_valid_text(text: str, fraction: float) -> bool:
    """Whether a text is held out: a function of the text alone, so that more data moves none."""
    return is_held_out(normalize_text(text), fraction)


def is_held_out(normalized: str, fraction: float) -> bool:
    """As :func:`is_valid_text` for a text that ``normalize_text`` made."""
    digest = hashlib.sha256(normalized.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * HASH_RANGE
