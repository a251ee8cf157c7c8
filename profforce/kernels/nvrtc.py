"""CUDA C++ compiled at first use by NVRTC and kept on disk; this needs neither nvcc nor a GPU.

A kernel is an ``extern "C"`` function of a source text, made special by ``-D`` macros. Its machine
code is kept in the user's cache folder under the source, the macros, the architecture and NVRTC's
version, so that a process after the first one only loads it.
"""

import ctypes
import hashlib
import logging
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from profforce.errors import UserError

log = logging.getLogger(__name__)

PLAIN_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that a kernel may have without asking the driver for more."""
CACHE_BYTES = 512 * 2**20
"""Size at which the least recently read entries leave the cache folder."""
FRAME = struct.Struct("<4s32sI")
"""Head of a cache entry: mark, SHA-256 of what follows, bytes of the compiler's log."""
FRAME_MARK = b"pfk1"
DEFAULT_STREAM = 0

Macros = Mapping[str, str | int]


class KernelError(RuntimeError):
    """A kernel that cannot be compiled, loaded or launched; the message names it, in one line."""


@dataclass(frozen=True)
class CompileReport:
    """What the assembler says of one kernel."""

    kernel: str
    arch: str
    """Compute capability without a dot, such as ``90``."""
    registers: int
    """Registers a thread."""
    spill_bytes: int
    """Bytes a thread stores to or loads from local memory for want of registers, the larger one."""
    static_shared_bytes: int
    """Shared memory a block, beside the dynamic part that a launch asks for."""
    log: str
    cached: bool
    """Was it found on disk, so that nothing was compiled?"""


def why_unavailable() -> str | None:
    """One line on why nothing can be compiled here; None if it can."""
    try:
        from cuda.bindings import nvrtc
        from cuda.core import Program, utils

        nvrtc.nvrtcVersion()
        _ = Program, utils.FileStreamProgramCache
    except ModuleNotFoundError as err:
        remedy = f"pip install 'cuda-core>=1.0,<2' 'cuda-bindings=={_major()}.*'"
        return f"there is no module '{err.name}'; {remedy}"
    except Exception as err:  # a library that cannot be loaded has an error type of cuda's own
        return " ".join(f"NVRTC cannot be loaded: {err}".split())
    return None


def version() -> str:
    """NVRTC's version, such as ``13.0``.

    Raises:
        UserError: if NVRTC is not installed.
    """
    _require()
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def supported_architectures() -> list[str]:
    """Architectures that the installed NVRTC compiles for, such as ``["75", "80"]``.

    Raises:
        UserError: if NVRTC is not installed.
    """
    _require()
    from cuda.bindings import nvrtc

    _, count = nvrtc.nvrtcGetNumSupportedArchs()
    _, numbers = nvrtc.nvrtcGetSupportedArchs()
    return [str(number) for number in numbers[:count]]


def architecture(device: int) -> str:
    """Compute capability of a CUDA device without the dot, such as ``90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}{minor}"


def cache_folder() -> Path:
    """Where machine code is kept, in the user's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("profforce", appauthor=False) / "kernels"


def compile_only(source: str, name: str, macros: Macros, arch: str) -> CompileReport:
    """Compile a kernel for any architecture, with no GPU, into the cache, and say what it needs.

    Args:
        source: CUDA C++ with no includes.
        name: the kernel, an ``extern "C" __global__`` function.
        macros: ``-D`` definitions.
        arch: compute capability without a dot, such as ``90``.

    Raises:
        KernelError: if it does not compile or has no kernel of that name.
        UserError: if NVRTC is not installed.
    """
    cubin, text, cached = _machine_code(source, name, macros, arch)
    del cubin
    return _report(name, arch, text, cached)


def load(source: str, name: str, macros: Macros, device: int) -> "Kernel":
    """The kernel ready to launch on a device, compiled if neither memory nor disk has it.

    Args:
        source: CUDA C++ with no includes.
        name: the kernel, an ``extern "C" __global__`` function.
        macros: ``-D`` definitions.
        device: index of the CUDA device.

    Raises:
        KernelError: if it cannot be compiled or loaded.
        UserError: if NVRTC is not installed.
    """
    key = (source, name, tuple(macros.items()), device)
    with _loading:
        if key not in _loaded:
            cubin, _, _ = _machine_code(source, name, macros, architecture(device))
            _loaded[key] = _kernel(cubin, name, device)
        return _loaded[key]


_loading = threading.Lock()
_loaded: dict[tuple[str, str, tuple[tuple[str, str | int], ...], int], "Kernel"] = {}


class Kernel:
    """A kernel on one device. Launching is safe from several threads."""

    def __init__(self, name: str, handle: int, device: int, owner: object = None) -> None:
        """Wrap the driver's ``CUkernel`` at ``handle``; ``owner`` keeps its library loaded."""
        from cuda.bindings import driver

        self.name, self.device = name, device
        self._driver: Any = driver
        self._function = driver.CUfunction(handle)  # cuLaunchKernel takes a CUkernel in its place
        self._handle, self._owner = handle, owner
        self._allowed_bytes = PLAIN_SHARED_BYTES
        self._blocks = threading.local()

    def launch(
        self,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int,
        stream: int,
        args: Sequence[int | float],
    ) -> None:
        """Queue the kernel on a stream of its device; returns at once.

        Args:
            grid: blocks in x, y, z; with a zero among them nothing is launched.
            block: threads a block.
            shared_bytes: dynamic shared memory a block; above 48 KB the driver is asked for it.
            stream: the raw ``cudaStream_t``, as ``torch.cuda.current_stream().cuda_stream``.
            args: one value a parameter: an ``int`` for one of 8 bytes (pointer, int64), a
                ``float`` for a float32. Their types are the same in every launch.

        Raises:
            KernelError: if the driver refuses.
        """
        if 0 in grid:
            return
        if torch.cuda.current_device() == self.device:
            self._launch(grid, block, shared_bytes, stream, args)
            return
        with torch.cuda.device(self.device):
            self._launch(grid, block, shared_bytes, stream, args)

    def _launch(
        self,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int,
        stream: int,
        args: Sequence[int | float],
    ) -> None:
        if shared_bytes > self._allowed_bytes:
            self._allow(shared_bytes)
        address = self._arguments(args)
        success = self._driver.CUresult.CUDA_SUCCESS
        for attempt in (1, 2):
            (code,) = self._driver.cuLaunchKernel(
                self._function, *grid, block, 1, 1, shared_bytes, stream, address, 0
            )
            if code == success:
                return
            no_context = code == self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
            if attempt == 2 or not no_context or stream != DEFAULT_STREAM:
                break
            self._bring_context()
        raise KernelError(
            f"kernel '{self.name}' cannot be launched: {code.name} "
            f"(grid {grid}, block {block}, {shared_bytes} bytes of shared memory)"
        )

    def _bring_context(self) -> None:
        """Make the device's context current: PyTorch leaves a thread of autograd without one."""
        from cuda.core import Device

        Device(self.device).set_current()

    def _allow(self, shared_bytes: int) -> None:
        driver = self._driver
        what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        kernel = driver.CUkernel(self._handle)
        code, device = driver.cuDeviceGet(self.device)
        if code == driver.CUresult.CUDA_SUCCESS:
            (code,) = driver.cuKernelSetAttribute(what, shared_bytes, kernel, device)
        if code != driver.CUresult.CUDA_SUCCESS:
            raise KernelError(
                f"kernel '{self.name}' cannot have {shared_bytes} bytes of shared memory: "
                f"{code.name}"
            )
        self._allowed_bytes = shared_bytes

    def _arguments(self, args: Sequence[int | float]) -> int:
        """Address of the table of argument addresses, each thread having its own."""
        arguments: _Arguments | None = getattr(self._blocks, "arguments", None)
        if arguments is None:
            arguments = self._blocks.arguments = _Arguments(args)
        try:
            return arguments.fill(args)
        except struct.error as err:
            raise KernelError(f"kernel '{self.name}': wrong arguments: {err}") from err


class _Arguments:
    """Argument values and the table of their addresses, in storage that stays where it is."""

    def __init__(self, args: Sequence[int | float]) -> None:
        codes = ("f4x" if isinstance(value, float) else "q" for value in args)
        self._layout = struct.Struct("=" + "".join(codes))
        self._values = ctypes.create_string_buffer(self._layout.size)
        first = ctypes.addressof(self._values)
        addresses = range(first, first + self._layout.size, 8)
        self._table = (ctypes.c_void_p * len(args))(*addresses)
        self._address = ctypes.addressof(self._table)

    def fill(self, args: Sequence[int | float]) -> int:
        self._layout.pack_into(self._values, 0, *args)
        return self._address


def _kernel(cubin: bytes, name: str, device: int) -> Kernel:
    from cuda.core import Device, ObjectCode

    try:
        with torch.cuda.device(device):  # leaves the caller's device current again
            Device(device).set_current()
            code = ObjectCode.from_cubin(cubin, name=name)
            handle = int(code.get_kernel(name).handle)
    except Exception as err:
        raise KernelError(
            f"kernel '{name}' cannot be loaded: {' '.join(str(err).split())}"
        ) from err
    return Kernel(name, handle, device, owner=code)


def _machine_code(source: str, name: str, macros: Macros, arch: str) -> tuple[bytes, str, bool]:
    """(cubin, the assembler's log, was it on disk?)."""
    _require()
    from cuda.core import ProgramOptions
    from cuda.core.utils import make_program_cache_key

    options = ProgramOptions(
        name=name,
        arch=f"sm_{arch}",
        std="c++17",
        define_macro=[(key, str(value)) for key, value in macros.items()] or None,
        ptxas_options=["-v"],
    )
    key = make_program_cache_key(
        code=source, code_type="c++", options=options, target_type="cubin", extra_digest=FRAME_MARK
    )
    entry = _read(key)
    if entry is not None:
        return *entry, True
    cubin, text = _compile(source, name, options)
    _write(key, cubin, text)
    return cubin, text, False


def _compile(source: str, name: str, options: Any) -> tuple[bytes, str]:
    import io

    from cuda.core import Program

    text = io.StringIO()
    try:
        program = Program(source, "c++", options=options)
        cubin = bytes(program.compile("cubin", logs=text).code)
    except Exception as err:
        said = _first_error(f"{text.getvalue()}\n{err}")
        where = f"kernel '{name}' does not compile for {options.arch}"
        raise KernelError(f"{where}: {said}") from err
    return cubin, text.getvalue()


def _first_error(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b\s*:|\bfatal\b", line)]
    return (errors or lines)[0]


def _read(key: bytes) -> tuple[bytes, str] | None:
    """(cubin, log) of a whole entry; None where there is none or it is damaged."""
    try:
        with _cache() as cache:
            data = cache.get(key)
    except OSError as err:
        _say_no_cache(err)
        return None
    if data is None:
        return None
    head, body = data[: FRAME.size], data[FRAME.size :]
    if len(head) == FRAME.size:
        mark, digest, log_bytes = FRAME.unpack(head)
        if mark == FRAME_MARK and hashlib.sha256(body).digest() == digest:
            return bytes(body[log_bytes:]), body[:log_bytes].decode()
    log.warning("a damaged kernel in %s is compiled again", cache_folder())
    return None


def _write(key: bytes, cubin: bytes, text: str) -> None:
    said = text.encode()
    body = said + cubin
    try:
        with _cache() as cache:
            cache[key] = FRAME.pack(FRAME_MARK, hashlib.sha256(body).digest(), len(said)) + body
    except OSError as err:
        _say_no_cache(err)


def _cache() -> Any:
    from cuda.core.utils import FileStreamProgramCache

    return FileStreamProgramCache(cache_folder(), max_size_bytes=CACHE_BYTES)


def _say_no_cache(err: OSError) -> None:
    """Once a folder: every process compiles anew, which is slow but right."""
    folder = cache_folder()
    if folder not in _unusable:
        _unusable.add(folder)
        log.warning("compiled kernels cannot be kept in %s: %s", folder, err.strerror or err)


_unusable: set[Path] = set()


def _report(name: str, arch: str, text: str, cached: bool) -> CompileReport:
    """Read the section that ``ptxas -v`` wrote about one kernel."""
    begins = [m.start() for m in re.finditer(r"Compiling entry function", text)]
    sections = [text[a:b] for a, b in zip(begins, [*begins[1:], None], strict=True)]
    about = [s for s in sections if s.startswith(f"Compiling entry function '{name}'")]
    if not about:
        raise KernelError(f"the source has no extern \"C\" kernel '{name}'")

    def number(pattern: str) -> int:
        found = re.search(pattern, about[0])
        return int(found[1]) if found else 0

    return CompileReport(
        kernel=name,
        arch=arch,
        registers=number(r"Used (\d+) registers"),
        spill_bytes=max(number(r"(\d+) bytes spill stores"), number(r"(\d+) bytes spill loads")),
        static_shared_bytes=number(r"(\d+) bytes smem"),
        log=text,
        cached=cached,
    )


def _require() -> None:
    if problem := why_unavailable():
        raise UserError(f"CUDA kernels cannot be compiled: {problem}")


def _major() -> str:
    """CUDA's major version, as PyTorch was built with."""
    return (torch.version.cuda or "13").partition(".")[0]
