"""The CUDA kernels compiled for the CPU by g++, standing in for a device of ``cuda.py``."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profforce.kernels import cuda
from profforce.kernels.cuda import Instance

HERE = Path(__file__).parent
SOURCE = Path(cuda.__file__).with_name("causal_linear.cu")
COMPILER = shutil.which("g++")
FLAGS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC")
LITTLE_ENDIAN_64 = ("x86_64", "AMD64", "aarch64")


def why_not() -> str | None:
    """Why the kernels cannot be emulated here; None if they can."""
    if COMPILER is None:
        return "there is no g++"
    if platform.machine() not in LITTLE_ENDIAN_64:
        return f"not tried on {platform.machine()}"
    return None


class EmulationError(RuntimeError):
    """A deadlock, a write outside shared memory, or a wrong launch."""


class CompileError(RuntimeError):
    """The compiler's first words."""


@dataclass(frozen=True)
class EmulatedDevice:
    """Takes the place of :class:`profforce.kernels.cuda.Device`."""

    folder: Path
    """Where compiled instances lie; one is compiled once."""
    arch: str
    multiprocessors: int = 1
    source: Path = SOURCE
    flags: tuple[str, ...] = FLAGS
    index: int = 0
    schedule: list[int] = field(default_factory=lambda: [0], compare=False)
    """The seed that the threads are shuffled by, 0 for their order; to be changed at will."""

    def load(self, made: Instance) -> "EmulatedKernel":
        return EmulatedKernel(made.name, _compile(self, made), self.schedule)

    def stream(self) -> int:
        return 0


class EmulatedKernel:
    """Takes the place of :class:`profforce.kernels.nvrtc.Kernel`."""

    def __init__(self, name: str, library: Path, schedule: list[int]) -> None:
        self._name, self._schedule = name.encode(), schedule
        self._emulate = ctypes.CDLL(str(library)).emulate
        self._emulate.restype = ctypes.c_char_p

    def launch(
        self,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int,
        stream: int,
        args: Sequence[int | float],
    ) -> None:
        assert grid[2] == 1 and all(isinstance(value, int) for value in args)
        values = (ctypes.c_longlong * len(args))(*args)
        x, y, _ = grid
        seed = self._schedule[0]
        problem = self._emulate(
            self._name, values, len(args), x, y, block, seed, ctypes.c_uint(shared_bytes)
        )
        if problem is not None:
            raise EmulationError(f"{self._name.decode()}: {problem.decode()}")


def split_into(segments: int) -> Callable[[int, int, int], tuple[int, int]]:
    """Takes the place of :func:`profforce.kernels.cuda.split`."""

    def split(steps: int, heads: int, multiprocessors: int) -> tuple[int, int]:
        each = -(-steps // (64 * segments)) * 64
        assert -(-steps // each) == segments, "choose another number of steps"
        return segments, each

    return split


def _compile(device: EmulatedDevice, made: Instance) -> Path:
    """The instance as a library; what the preprocessor leaves of it alike is compiled once."""
    macros = {**made.macros, "PF_NAME": made.name, "PF_SOURCE": f'"{device.source}"'}
    defines = [f"-D{key}={value}" for key, value in macros.items()]
    text = _run([*device.flags, *defines, "-E", "-P", str(HERE / "harness.cpp")], "", made.name)
    name = hashlib.sha256("\0".join((*device.flags, text)).encode()).hexdigest()[:16]
    library = device.folder / f"{made.name}-{name}.so"
    if not library.exists():
        part = library.with_suffix(f".{os.getpid()}")
        _run([*device.flags, "-x", "c++", "-", "-o", str(part)], text, made.name)
        part.rename(library)
    return library


def _run(arguments: list[str], text: str, name: str) -> str:
    command = [str(COMPILER), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{name} does not compile: {done.stderr[:2000]}")
    return done.stdout
