"""Compiling and caching without a GPU; launching against a driver that only writes down."""

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profforce.errors import UserError
from profforce.kernels import nvrtc
from profforce.kernels.nvrtc import Kernel, KernelError, compile_only

ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
TOY = """
extern "C" __global__ void scale(float* x, long long n, float factor) {
  __shared__ float tile[64];
  long long i = blockIdx.x * 64LL + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  if (i < n) x[i] = factor * tile[63 - threadIdx.x] * TIMES;
}
extern "C" __global__ void other(float* x) { x[0] = TIMES; }
"""
SHARED_LIMITS = {  # bytes that a block may have, by the CUDA programming guide
    **{"75": 64 * 1024, "80": 163 * 1024, "86": 99 * 1024, "89": 99 * 1024},
    **{"90": 227 * 1024, "100": 227 * 1024, "120": 99 * 1024},
}
REGISTERS = 65536
"""Registers of a block; they are handed out to a thread in eights."""
USERS_FOLDER = nvrtc.cache_folder
needs_nvrtc = pytest.mark.skipif(
    nvrtc.why_unavailable() is not None, reason=f"NVRTC: {nvrtc.why_unavailable()}"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path / "kernels")
    return tmp_path / "kernels"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what NVRTC really compiled."""
    done: list[str] = []
    real = nvrtc._compile

    def compile_(source: str, name: str, options: Any) -> tuple[bytes, str]:
        done.append(name)
        return real(source, name, options)

    monkeypatch.setattr(nvrtc, "_compile", compile_)
    return done


def entries(folder: Path) -> list[Path]:
    return [path for path in (folder / "entries").rglob("*") if path.is_file()]


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_compiles_with_no_gpu(arch: str) -> None:
    report = compile_only(TOY, "scale", {"TIMES": 2}, arch)
    assert (report.kernel, report.arch, report.cached) == ("scale", arch, False)
    assert 4 <= report.registers <= 64
    assert report.spill_bytes == 0
    assert 256 <= report.static_shared_bytes <= 256 + 1024
    assert f"sm_{arch}" in report.log


@needs_nvrtc
def test_spills_are_seen() -> None:
    source = """
extern "C" __global__ void __launch_bounds__(1024, 2) wide(float* x) {
  float held[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) held[i] = x[i * 32 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 64; ++i) x[i * 32 + threadIdx.x] = held[i] * held[(i * 7 + 1) % 64];
}
extern "C" __global__ void slim(float* x) { x[0] = 1; }
"""
    assert compile_only(source, "wide", {}, "80").spill_bytes >= 4 * (64 - 32)
    assert compile_only(source, "slim", {}, "80").spill_bytes == 0


@needs_nvrtc
def test_the_second_time_nothing_is_compiled(compiles: list[str]) -> None:
    first = compile_only(TOY, "scale", {"TIMES": 2}, "80")
    again = [compile_only(TOY, "scale", {"TIMES": 2}, "80") for _ in range(10)]
    assert compiles == ["scale"]
    assert all(report.cached for report in again) and not first.cached
    assert {(report.registers, report.log) for report in again} == {(first.registers, first.log)}


@needs_nvrtc
def test_source_macros_name_and_architecture_tell_kernels_apart(compiles: list[str]) -> None:
    compile_only(TOY, "scale", {"TIMES": 2}, "80")
    compile_only(TOY, "scale", {"TIMES": 3}, "80")
    compile_only(TOY, "scale", {"TIMES": 2, "MORE": 1}, "80")
    compile_only(TOY, "scale", {"TIMES": 2}, "90")
    compile_only(TOY, "other", {"TIMES": 2}, "80")
    compile_only(TOY + "\n", "scale", {"TIMES": 2}, "80")
    assert len(compiles) == 6


@needs_nvrtc
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-100],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" * len(data),
    ],
    ids=["cut", "cut in the head", "empty", "one bit", "rubbish"],
)
def test_a_damaged_entry_is_compiled_again(
    damage: Callable[[bytes], bytes],
    folder: Path,
    compiles: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = nvrtc._machine_code(TOY, "scale", {"TIMES": 2}, "80")
    (path,) = entries(folder)
    path.write_bytes(damage(path.read_bytes()))
    cubin, _, cached = nvrtc._machine_code(TOY, "scale", {"TIMES": 2}, "80")
    assert cubin == whole[0] and not cached
    assert len(compiles) == 2
    assert "damaged" in caplog.text
    assert compile_only(TOY, "scale", {"TIMES": 2}, "80").cached, "the entry was not mended"


@needs_nvrtc
def test_a_folder_that_cannot_be_used_costs_time_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiles: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path / "file/kernels")
    for _ in range(2):
        assert compile_only(TOY, "scale", {"TIMES": 2}, "80").registers
    assert len(compiles) == 2
    assert caplog.text.count("cannot be kept") == 1


@needs_nvrtc
def test_processes_share_the_folder(folder: Path) -> None:
    code = (
        "import sys, pathlib; from profforce.kernels import nvrtc;"
        f"nvrtc.cache_folder = lambda: pathlib.Path({str(folder)!r});"
        f"r = nvrtc.compile_only({TOY!r}, 'scale', {{'TIMES': 2}}, '80'); print(r.registers)"
    )
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    report = compile_only(TOY, "scale", {"TIMES": 2}, "80")
    assert report.cached and said == {f"{report.registers}\n"}
    assert len(entries(folder)) == 1


@needs_nvrtc
def test_a_mistake_in_the_source_is_one_line() -> None:
    with pytest.raises(KernelError) as caught:
        compile_only("\n" + TOY.replace("TIMES", "TIMS"), "scale", {"TIMES": 2}, "80")
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("kernel 'scale' does not compile for sm_80: scale(")
    assert 'identifier "TIMS" is undefined' in line


@needs_nvrtc
def test_an_architecture_or_a_name_that_is_not_there() -> None:
    with pytest.raises(KernelError, match=r"kernel 'scale' does not compile for sm_12345: .*arch"):
        compile_only(TOY, "scale", {"TIMES": 2}, "12345")
    with pytest.raises(KernelError, match="no extern \"C\" kernel 'scales'"):
        compile_only(TOY, "scales", {"TIMES": 2}, "80")
    assert set(ARCHITECTURES) <= set(nvrtc.supported_architectures())


def test_without_cuda_core_there_is_one_line_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(UserError, match=r"pip install 'cuda-core.*cuda-bindings==\d+\.\*'") as err:
        compile_only(TOY, "scale", {"TIMES": 2}, "80")
    assert "\n" not in str(err.value)


class FakeDriver:
    """Stands in for ``cuda.bindings.driver``: writes down each call, and reads the arguments."""

    CUresult = SimpleNamespace(
        CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"),
        CUDA_ERROR_INVALID_VALUE=SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE"),
        CUDA_ERROR_INVALID_CONTEXT=SimpleNamespace(name="CUDA_ERROR_INVALID_CONTEXT"),
    )
    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max_dynamic"
    )
    CUfunction = CUkernel = staticmethod(int)

    def __init__(self, layout: str = "qfq") -> None:
        self.layout, self.answers = layout, []
        self.calls: list[tuple[Any, ...]] = []

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, int]:  # noqa: N802
        return self.CUresult.CUDA_SUCCESS, 100 + ordinal

    def cuKernelSetAttribute(self, *args: Any) -> tuple[Any]:  # noqa: N802
        self.calls.append(("allow", *args))
        return (self.answers.pop(0) if self.answers else self.CUresult.CUDA_SUCCESS,)

    def cuLaunchKernel(self, *args: Any) -> tuple[Any]:  # noqa: N802
        *head, table, extra = args
        assert extra == 0
        addresses = (ctypes.c_void_p * len(self.layout)).from_address(table)
        kinds = {"q": ctypes.c_int64, "f": ctypes.c_float}
        values = [
            kinds[kind].from_address(address or 0).value
            for kind, address in zip(self.layout, addresses, strict=True)
        ]
        self.calls.append(("launch", *head, values))
        return (self.answers.pop(0) if self.answers else self.CUresult.CUDA_SUCCESS,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    bindings = SimpleNamespace(driver=fake)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=bindings))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    yield fake


def test_a_launch_hands_over_grid_stream_and_arguments(driver: FakeDriver) -> None:
    kernel = Kernel("toy", 77, 1)
    kernel.launch((3, 2, 1), 128, 1024, 999, [1 << 40, 0.5, -2])
    kernel.launch((1, 1, 1), 32, 0, 0, [5, 2.0, 6])
    assert driver.calls == [
        ("launch", 77, 3, 2, 1, 128, 1, 1, 1024, 999, [1 << 40, 0.5, -2]),
        ("launch", 77, 1, 1, 1, 32, 1, 1, 0, 0, [5, 2.0, 6]),
    ]


def test_an_empty_grid_launches_nothing(driver: FakeDriver) -> None:
    Kernel("toy", 77, 1).launch((3, 0, 1), 128, 0, 0, [1, 0.5, 2])
    assert driver.calls == []


def test_much_shared_memory_is_asked_for_once(driver: FakeDriver) -> None:
    kernel = Kernel("toy", 77, 1)
    for shared in (48 * 1024, 60_000, 60_000, 70_000, 50_000):
        kernel.launch((1, 1, 1), 32, shared, 0, [1, 0.5, 2])
    asked = [call[1:] for call in driver.calls if call[0] == "allow"]
    assert asked == [("max_dynamic", 60_000, 77, 101), ("max_dynamic", 70_000, 77, 101)]


def test_what_the_driver_refuses_is_one_line(driver: FakeDriver) -> None:
    kernel = Kernel("toy", 77, 1)
    driver.answers = [driver.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(KernelError, match=r"'toy' cannot be launched: CUDA_ERROR_INVALID_VALUE"):
        kernel.launch((1, 1, 1), 2048, 0, 0, [1, 0.5, 2])
    driver.answers = [driver.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(KernelError, match="'toy' cannot have 300000 bytes of shared memory"):
        kernel.launch((1, 1, 1), 32, 300_000, 0, [1, 0.5, 2])
    with pytest.raises(KernelError, match="'toy': wrong arguments"):
        kernel.launch((1, 1, 1), 32, 0, 0, [1, 0.5])


def test_a_thread_without_a_context_gets_one(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel("toy", 77, 1)
    brought: list[int] = []
    monkeypatch.setattr(Kernel, "_bring_context", lambda self: brought.append(self.device))
    driver.answers = [driver.CUresult.CUDA_ERROR_INVALID_CONTEXT]
    kernel.launch((1, 1, 1), 32, 0, 0, [1, 0.5, 2])
    assert brought == [1] and len(driver.calls) == 2
    driver.answers = [driver.CUresult.CUDA_ERROR_INVALID_CONTEXT] * 2
    with pytest.raises(KernelError, match="INVALID_CONTEXT"):
        kernel.launch((1, 1, 1), 32, 0, 0, [1, 0.5, 2])


def test_a_launch_goes_to_the_kernels_own_device(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    class Guard:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            entered.append(self.index)

        def __exit__(self, *_: object) -> None:
            assert driver.calls, "left before the launch"

    monkeypatch.setattr(torch.cuda, "device", Guard)
    Kernel("toy", 77, 0).launch((1, 1, 1), 32, 0, 0, [1, 0.5, 2])
    assert entered == [0]


def test_threads_do_not_share_their_arguments(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel("toy", 77, 1)
    turn = threading.Barrier(2)
    fill = nvrtc._Arguments.fill

    def slowly(self: nvrtc._Arguments, args: Any) -> int:
        address = fill(self, args)
        turn.wait(10)  # both have filled theirs before either launches
        return address

    monkeypatch.setattr(nvrtc._Arguments, "fill", slowly)
    threads = [
        threading.Thread(target=kernel.launch, args=((1, 1, 1), 32, 0, 0, [n, 0.5, n]))
        for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(call[-1] for call in driver.calls) == [[1, 0.5, 1], [2, 0.5, 2]]


def check_instances(arch: str, common: bool) -> int:
    """Compile the product's kernels into the user's own cache, which a second run finds them in."""
    from profforce.kernels import cuda

    source = Path(cuda.__file__).with_name("causal_linear.cu").read_text(encoding="utf-8")
    wrong, checked = [], 0
    for made in cuda.instances(arch):
        is_common = made.macros["PF_WIDTH"] in (32, 64) and made.macros["PF_TYPE"] in (0, 1)
        if common and not is_common:
            continue
        report = compile_only(source, made.name, made.macros, arch)
        figures = {
            "registers": (report.registers, 255),
            "registers a block": (-(-report.registers // 8) * 8 * made.block, REGISTERS),
            "shared": (report.static_shared_bytes + made.shared_bytes, SHARED_LIMITS[arch]),
            "spills": (report.spill_bytes, 0 if is_common else 4096),
        }
        wrong += [
            f"{made.name} {made.macros}: {value} {what}, at most {most}"
            for what, (value, most) in figures.items()
            if value > most
        ]
        checked += 1
    assert not wrong, "\n".join(wrong)
    return checked


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_common_kernels_fit_every_architecture(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "cache_folder", USERS_FOLDER)
    assert check_instances(arch, common=True) >= 24


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["75", "90"], ids=["75-no-tensor-cores", "90-tensor-cores"])
def test_all_kernels_compile(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the architectures: profforce doctor --build --arch 80,86,89,100,120."""
    monkeypatch.setattr(nvrtc, "cache_folder", USERS_FOLDER)
    assert check_instances(arch, common=False) >= 100
