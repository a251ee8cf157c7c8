"""Which instances of the CUDA kernels there are, and how each is cut to its architecture.

Importable without CUDA. The shared memory reserved here follows ``causal_linear.cu``, which checks
it when it is compiled.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from profforce.kernels.state import EPS

WIDTHS = (16, 32, 48, 64, 96, 128)
"""Padded widths; the larger of key and value width is rounded up to one of them."""
MAX_WIDTH = WIDTHS[-1]
TYPES = (0, 1, 2)
"""float32, bfloat16, float16."""

_KERNELS = {
    "pf_forward": 1,
    "pf_grad_q": 2,
    "pf_grad_kv": 3,
    "pf_states": 4,
    "pf_grad_states": 5,
    "pf_prefix": 6,
    "pf_step": 7,
}
_WIDTH_TILES = {"pf_forward": 3, "pf_grad_q": 4, "pf_grad_kv": 4}
"""Tiles of a chunk by a width that a kernel keeps in shared memory."""
_GRADIENTS = ("pf_grad_q", "pf_grad_kv")
_KIB = 1024
_SHARED_LIMITS = {"75": 64 * _KIB, "80": 163 * _KIB, "87": 163 * _KIB}
_SHARED_LIMITS |= dict.fromkeys(("86", "89", "120", "121"), 99 * _KIB)
_SHARED_LIMITS |= dict.fromkeys(("90", "100", "103", "110"), 227 * _KIB)
_RESERVED = _KIB
"""Bytes that the system takes from a multiprocessor for every block."""


@dataclass(frozen=True)
class Instance:
    """One kernel made special by macros."""

    name: str
    """The ``extern "C"`` function."""
    macros: dict[str, str | int]
    shared_bytes: int
    """Dynamic shared memory a block."""
    block: int
    """Threads a block."""


@dataclass(frozen=True)
class _Cut:
    """How a kernel is cut: steps a chunk, rows of the state on stage, threads and blocks."""

    chunk: int
    stage: int
    threads: int
    blocks: int
    """Blocks that a multiprocessor shall hold; registers are limited to suit."""


def instances(arch: str) -> list[Instance]:
    """Every instance for an architecture, a compute capability without a dot such as ``90``."""
    return list(_instances(arch))


def _instances(arch: str) -> Iterator[Instance]:
    yield instance("pf_prefix", arch, 0, WIDTHS[0])
    for name in _KERNELS:
        if name != "pf_prefix":
            yield from (instance(name, arch, kind, width) for kind in TYPES for width in WIDTHS)


@functools.cache
def instance(name: str, arch: str, kind: int, width: int) -> Instance:
    """One instance.

    Args:
        name: the kernel; ``pf_prefix`` has the same instance for every type and width.
        arch: compute capability without a dot.
        kind: one of ``TYPES``.
        width: one of ``WIDTHS``.
    """
    if name == "pf_prefix":
        kind, width = 0, WIDTHS[0]
    cut = _cut(name, arch, kind, width)
    shared = 4 * _shared_floats(name, width, cut)
    macros: dict[str, str | int] = {
        "PF_KERNEL": _KERNELS[name],
        "PF_TYPE": kind,
        "PF_WIDTH": width,
        "PF_CHUNK": cut.chunk,
        "PF_STAGE": cut.stage,
        "PF_THREADS": cut.threads,
        "PF_BLOCKS": cut.blocks,
        "PF_TENSOR": int(_has_tensor_cores(arch)),
        "PF_SHARED": shared,
        "PF_EPS": f"{EPS}f",
    }
    return Instance(name, macros, shared, cut.threads)


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that a block may have, 99 KB where the architecture is not known."""
    return _SHARED_LIMITS.get(arch, 99 * _KIB)


def _has_tensor_cores(arch: str) -> bool:
    """Whether bfloat16 and TF32 products are there; float16 ones of sm_75 are of no use to us."""
    return int(arch) >= 80


def _cut(name: str, arch: str, kind: int, width: int) -> _Cut:
    """The first cut that leaves room for as many blocks as are wanted, else for one."""
    threads = 128 if width <= 32 else 256
    if name not in _WIDTH_TILES:
        return _Cut(32, width, threads, 1)
    wanted = _blocks_wanted(name, arch, width)
    limit = shared_limit(arch)
    cuts = [
        _Cut(chunk, stage, threads, blocks)
        for blocks in (wanted, 1)
        for chunk, stage in _tilings(name, kind, width)
    ]
    return next(
        cut
        for cut in cuts
        if 4 * _shared_floats(name, width, cut) <= (limit + _RESERVED) // cut.blocks - _RESERVED
    )


def _blocks_wanted(name: str, arch: str, width: int) -> int:
    """As many as registers allow without spilling, by the assembler's report."""
    if width > 64 or not _has_tensor_cores(arch):
        return 1
    return 3 if width <= 32 else 2


def _tilings(name: str, kind: int, width: int) -> Iterator[tuple[int, int]]:
    """Steps a chunk and rows on stage, the best first; others would spill, by the same report."""
    is_gradient = name in _GRADIENTS
    narrow = 16 if width == 48 or (is_gradient and kind and width == 64) else min(width, 32)
    for chunk in (64, 32, 16) if width in (48, 64) and not is_gradient else (32, 16):
        yield chunk, width
        yield chunk, narrow


def _shared_floats(name: str, width: int, cut: _Cut) -> int:
    """What the kernel lays out in shared memory, in float32 values."""
    row = -(-width // 32) * 32
    tile = cut.chunk * row
    if name == "pf_prefix":
        return 0
    if name == "pf_step":
        groups = cut.threads // (width // 4)
        return 3 * width + groups * width + 4
    if name == "pf_states":
        return 2 * tile + cut.threads
    if name == "pf_grad_states":
        return 2 * tile + cut.threads + cut.chunk
    scores = cut.chunk * -(-cut.chunk // 32) * 32
    z_groups = cut.threads // width
    parts = cut.threads // 32 // (cut.chunk // 16)
    small = (z_groups + 1) * width + cut.chunk * (2 + 3 * parts)
    return _WIDTH_TILES[name] * tile + cut.stage * row + scores + small
