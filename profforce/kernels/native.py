"""Finding, compiling and loading the C++ kernel.

In this order: a library built with the package (wheels and installations made where a C++ compiler
was at hand), one compiled earlier into the user's cache folder, one compiled now. The first use
says once in the log which one runs. ``PROFFORCE_CPU_KERNEL`` forces ``avx512``, ``avx2``,
``baseline`` or ``pytorch`` (no C++ at all).
"""

import ctypes
import functools
import hashlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch

from profforce.errors import UserError
from profforce.kernels.build import (
    AVX2,
    AVX512,
    BASELINE,
    COMMON_FLAGS,
    SOURCE,
    NoKernelError,
    Variant,
    compile_variant,
    library_name,
    source_key,
    variants,
)

OVERRIDE = "PROFFORCE_CPU_KERNEL"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Library:
    """A loaded build."""

    name: str
    """What ``profforce doctor`` shows."""
    variant: Variant
    path: Path
    handle: ctypes.CDLL


def library() -> Library | None:
    """The library in use, None if chunked PyTorch takes its place; see :func:`why_not`."""
    found = _choose(os.environ.get(OVERRIDE, ""))
    return found if isinstance(found, Library) else None


def why_not() -> str:
    """Why there is no library."""
    found = _choose(os.environ.get(OVERRIDE, ""))
    return "" if isinstance(found, Library) else found


@functools.cache
def _choose(override: str) -> Library | str:
    """The library for ``override`` (empty: the best one), or why there is none."""
    known = [variant.name for variant in variants()]
    if override == "pytorch":
        return f"chunked PyTorch ({OVERRIDE}=pytorch)"
    if override and override not in known:
        raise UserError(
            "no such CPU kernel",
            where=OVERRIDE,
            got=override,
            expected="|".join([*known, "pytorch"]),
        )
    best = best_variant()
    if override and known.index(override) < known.index(best.name):  # it would crash
        raise UserError(
            "this processor lacks that CPU kernel's instructions",
            where=OVERRIDE,
            got=override,
            expected="|".join([*known[known.index(best.name) :], "pytorch"]),
        )
    variant = next((v for v in variants() if v.name == override), best)
    try:
        found = load(variant)
    except NoKernelError as err:
        _log.warning("linear attention on the CPU: chunked PyTorch, slower: %s", err)
        return f"chunked PyTorch ({err})"
    _log.info("linear attention on the CPU: %s", found.name)
    return found


def best_variant() -> Variant:
    """The widest vectors that this processor has, as PyTorch found them."""
    capability = torch.backends.cpu.get_cpu_capability()
    by_capability = {"AVX512": AVX512, "AVX2": AVX2}
    wanted = by_capability.get(capability, BASELINE)
    return wanted if wanted in variants() else BASELINE


def load(variant: Variant) -> Library:
    """The variant's library: built with the package, compiled earlier, or compiled now.

    Raises:
        NoKernelError: without a compiler, or if it fails.
    """
    built = SOURCE.with_name(library_name(variant))
    for path, origin in ((built, "built with the package"), (_cached(variant), "compiled here")):
        handle = _open(path)
        if handle is not None:
            return Library(f"{variant.title}, {origin}", variant, path, handle)
    path = _cached(variant)
    started = time.perf_counter()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        compile_variant(variant, path)
    except OSError as err:
        raise NoKernelError(f"{path.parent} cannot be written: {err.strerror}") from err
    _log.info("compiled %s in %.1f s", path, time.perf_counter() - started)
    handle = _open(path)
    if handle is None:
        raise NoKernelError(f"{path} was compiled but cannot be loaded")
    return Library(f"{variant.title}, compiled here", variant, path, handle)


def _cached(variant: Variant) -> Path:
    flags = hashlib.sha256(" ".join((*COMMON_FLAGS, *variant.flags)).encode()).hexdigest()[:8]
    folder = Path(platformdirs.user_cache_dir("profforce")) / "cpu" / f"{source_key()}-{flags}"
    return folder / library_name(variant)


def _open(path: Path) -> ctypes.CDLL | None:
    """A library built from today's source; None if it is missing, broken or stale."""
    if not path.is_file():
        return None
    try:
        handle = ctypes.CDLL(str(path))
        handle.pf_source_key.restype = ctypes.c_char_p
        key = handle.pf_source_key()
    except (OSError, AttributeError):
        return None
    return handle if key == source_key().encode() else None
