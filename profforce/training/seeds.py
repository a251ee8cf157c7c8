"""Seeds as pure functions of the run's seed and a counter, so that a resume repeats them."""

import hashlib

import torch


def derived_seed(seed: int, purpose: str, number: int) -> int:
    """A 31-bit seed for ``purpose`` (``step``, ``pool``, ``crop``, ...) at counter ``number``."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """A CPU generator seeded by :func:`derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, number))
