"""The CUDA kernels compiled for the CPU by g++, standing in for a device of ``cuda.py``."""

import ctypes
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Sequence
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


def _compile(device: EmulatedDevice, made: Instance) -> Path:
    macros = {**made.macros, "PF_NAME": made.name, "PF_SOURCE": f'"{device.source}"'}
    defines = [f"-D{key}={value}" for key, value in macros.items()]
    command = [str(COMPILER), *device.flags, *defines, str(HERE / "harness.cpp")]
    text = device.source.read_bytes()
    name = hashlib.sha256("\0".join(command).encode() + text).hexdigest()[:16]
    library = device.folder / f"{made.name}-{name}.so"
    if not library.exists():
        part = library.with_suffix(".part")
        done = subprocess.run(
            [*command, "-o", str(part)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EmulationError(f"{made.name} does not compile: {done.stderr[:2000]}")
        part.rename(library)
    return library
