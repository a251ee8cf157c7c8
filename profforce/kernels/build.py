"""Compiling the C++ kernel: its variants, their flags, the compiler.

Nothing but the standard library, so that ``setup.py`` can use it before the package is installed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("causal_linear.cpp")
PARTS = ("causal_linear.cpp", "free_run.cpp", "packed.h", "vectors.h")
"""Files beside each other that make one library."""


@dataclass(frozen=True)
class Variant:
    """One build of the source."""

    name: str
    title: str
    lanes: int
    """Floats of a vector register."""
    flags: tuple[str, ...]


AVX512 = Variant(
    "avx512",
    "C++ AVX-512",
    16,
    ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
)
AVX2 = Variant("avx2", "C++ AVX2", 8, ("-mavx2", "-mfma"))
BASELINE = Variant("baseline", "C++ baseline", 4, ())
COMMON_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
LINK_FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden", "-pthread")


class NoKernelError(Exception):
    """There is no library, and why: one line for people."""


def variants() -> list[Variant]:
    """All that this kind of processor can be built for, best first."""
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    return [AVX512, AVX2, BASELINE] if is_x86 else [BASELINE]


def library_name(variant: Variant) -> str:
    """File name of a variant beside the source."""
    return f"causal_linear_{variant.name}{'.dll' if sys.platform == 'win32' else '.so'}"


def source_key() -> str:
    """What a library must have been built from to be used."""
    whole = b"".join(SOURCE.with_name(part).read_bytes() for part in PARTS)
    return hashlib.sha256(whole).hexdigest()[:16]


def compile_variant(variant: Variant, target: Path) -> None:
    """Compile one variant to ``target``, aside first, so that no half library is ever loaded.

    Raises:
        NoKernelError: without a compiler, or with its first complaint.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NoKernelError("no C++ compiler found; install g++ or clang++")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        aside = Path(folder) / target.name
        defines = (f"-DPF_LANES={variant.lanes}", f'-DPF_SOURCE_KEY="{source_key()}"')
        command = [
            *(compiler, *COMMON_FLAGS, *variant.flags, *defines, *LINK_FLAGS),
            *(str(SOURCE.with_name(part)) for part in PARTS if part.endswith(".cpp")),
            *("-o", str(aside)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoKernelError(f"{compiler} failed: {_first_error(done.stderr)}")
        aside.replace(target)


def find_compiler() -> str | None:
    """``CXX``, or the first of the usual names; Microsoft's compiler lacks vector types."""
    names = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
