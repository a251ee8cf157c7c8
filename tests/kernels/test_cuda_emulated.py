"""The CUDA kernels, compiled for the CPU, against the reference in float64.

The source is the one that NVRTC compiles, cut as for a real architecture, and the launching code
of ``cuda.py`` is the real one too; only the device is emulated.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from profforce.kernels import cuda, cuda_instances
from profforce.kernels.cuda_instances import WIDTHS, instances, shared_limit

sys.path.insert(0, str(Path(__file__).parent / "emulation"))

from cuda_cases import BF16, F16, F32, Case, StepCase, check
from cuda_emulator import FLAGS, EmulatedDevice, EmulationError, split_into, why_not

ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
SCHEDULES = (0, 1, 2, 3)
emulated = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

Emulate = Callable[..., EmulatedDevice]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda-emulated")


@pytest.fixture
def emulate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulate]:
    """Puts an emulated device under ``cuda.py``, with as many segments a sequence as asked for."""

    def start(arch: str, segments: int = 1, **settings: object) -> EmulatedDevice:
        device = EmulatedDevice(folder, arch, **settings)
        monkeypatch.setattr(cuda, "_device", lambda _: device)
        monkeypatch.setattr(cuda, "split", split_into(segments))
        return device

    cuda._kernel.cache_clear()
    yield start
    cuda._kernel.cache_clear()


SEQUENCES = [
    # widths and types on tensor cores, one segment
    (Case(F32, steps=37, key=16, value=16, layout="plain", state=False), "90", 1),
    (Case(F32, lengths=(70, 33)), "90", 1),
    (Case(F32, heads=3, steps=70, key=5, value=3, layout="odd", lengths=(70, 1)), "90", 1),
    (Case(F32, steps=100, key=64, value=64, lengths=(65, 100), feature_map="relu"), "90", 1),
    (Case(F32, 1, 40, 1, 128, 128, lengths=(33,)), "90", 1),
    (Case(BF16, lengths=(70, 33), feature_map="relu"), "90", 1),
    (Case(BF16, steps=100, key=64, value=64, feature_map="identity", lengths=(64, 99)), "90", 1),
    (Case(BF16, 1, 40, 1, 128, 128), "86", 1),
    (Case(F16, key=40, value=24, layout="odd", lengths=(0, 65)), "90", 1),
    (Case(F16, 1, 50, 2, 80, 96, layout="plain", feature_map="identity"), "120", 1),
    (Case(F16, key=64, value=64, state=False), "89", 1),
    # every length about a chunk, in one batch
    (Case(F32, 9, 100, 1, 16, 16, lengths=(0, 1, 31, 32, 33, 63, 64, 65, 100)), "90", 1),
    # split over the sequence
    (Case(F32, steps=150, key=64, value=64, lengths=(128, 150)), "90", 3),
    (Case(F32, 3, 130, 1, lengths=(0, 64, 129), layout="odd"), "86", 3),
    (Case(BF16, steps=128, key=64, value=64, lengths=(63, 65)), "80", 2),
    (Case(F16, 1, 140, 2, 48, 48, state=False, feature_map="relu"), "100", 3),
    # offsets beyond 32 bits
    (Case(BF16, 2, 10, 1, 16, 16, layout="far", state=False), "90", 1),
    # without tensor cores
    (Case(F32, lengths=(70, 33)), "75", 1),
    (Case(F32, steps=100, key=64, value=64, lengths=(100, 31)), "75", 2),
    (Case(F32, 1, 40, 1, 128, 128, feature_map="identity"), "75", 1),
    (Case(BF16, key=40, value=24, lengths=(70, 0)), "75", 1),
    (Case(F16, steps=70, key=16, value=16, feature_map="relu"), "75", 2),
    # a normaliser as small as eps, and a gradient of the last state alone
    (Case(F32, steps=20, state=False, shift=-8), "90", 1),
    (Case(F32, grad=False, lengths=(70, 5)), "90", 1),
]


STEPS = [
    (StepCase(F32), "90"),
    (StepCase(F32, key=64, value=64, feature_map="relu"), "90"),
    (StepCase(F32, shift=-8, state=False), "90"),
    (StepCase(BF16, key=40, value=24, feature_map="identity"), "80"),
    (StepCase(F16, key=128, value=128, batch=1, layout="plain"), "86"),
    (StepCase(F32, key=5, value=7, layout="odd"), "75"),
    (StepCase(BF16, key=16, value=16, heads=1), "75"),
]


def _name(x: object) -> str:
    return str(x)


@emulated
@pytest.mark.parametrize(("case", "arch", "segments"), SEQUENCES, ids=_name)
def test_sequences_equal_the_reference(
    case: Case, arch: str, segments: int, emulate: Emulate
) -> None:
    _assert_right(case, emulate(arch, segments))


@emulated
@pytest.mark.parametrize(("case", "arch"), STEPS, ids=_name)
def test_steps_equal_the_reference(case: StepCase, arch: str, emulate: Emulate) -> None:
    _assert_right(case, emulate(arch))


def _assert_right(case: Case | StepCase, device: EmulatedDevice) -> None:
    first: dict[str, torch.Tensor] = {}
    for seed in SCHEDULES:
        device.schedule[0] = seed
        problems, got = check(case)
        assert problems == []
        first = first or got
        assert all(torch.equal(got[name], first[name]) for name in got), "not reproducible"


@emulated
def test_fibers_switch_by_ucontext_too(emulate: Emulate) -> None:
    emulate("90", flags=(*FLAGS, "-DCUEMU_UCONTEXT"))
    assert check(Case(F32, 1, 20, 1, 16, 16))[0] == []


TOYS = {
    "deadlock at __syncthreads": "if (threadIdx.x != 5) __syncthreads(); else wait();",
    "deadlock in a warp collective": "if (threadIdx.x != 5) wait();",
    "write beyond the reserved shared memory": "((float*)pf_smem)[256 + threadIdx.x] = 1;",
}


@emulated
@pytest.mark.parametrize("message", TOYS)
def test_the_emulation_names_what_goes_wrong(
    message: str, emulate: Emulate, tmp_path: Path
) -> None:
    source = tmp_path / "toy.cu"
    source.write_text(
        "struct alignas(16) Four { float x[4]; };\n"
        "inline void wait() { __shfl_xor_sync(~0u, 1.f, 1); }\n"
        'extern "C" __global__ void pf_toy(long long) {\n'
        f"  extern __shared__ Four pf_smem[];\n  {TOYS[message]}\n}}\n"
    )
    device = emulate("90", source=source)
    kernel = device.load(cuda.Instance("pf_toy", {"PF_THREADS": 64}, 1024, 64))
    with pytest.raises(EmulationError, match=message):
        kernel.launch((1, 1, 1), 64, 1024, 0, [0])
    with pytest.raises(EmulationError, match="number of arguments"):
        kernel.launch((1, 1, 1), 64, 1024, 0, [0, 0])
    with pytest.raises(EmulationError, match="block size"):
        kernel.launch((1, 1, 1), 32, 1024, 0, [0])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_instance_fits_its_architecture(arch: str) -> None:
    made = instances(arch)
    assert len(made) == len({(i.name, *i.macros.values()) for i in made}) == 1 + 6 * 3 * len(WIDTHS)
    for one in made:
        assert one.shared_bytes <= shared_limit(arch)
        assert one.block % 32 == 0
        assert cuda.SEGMENT_STEPS % int(one.macros["PF_CHUNK"]) == 0
        together = int(one.macros["PF_BLOCKS"])
        assert together * (one.shared_bytes + 1024) <= shared_limit(arch) + 1024
    assert {one.macros["PF_TENSOR"] for one in made} == {int(arch != "75")}


def test_an_architecture_that_is_not_known_gets_what_all_have() -> None:
    assert max(i.shared_bytes for i in instances("999")) <= 99 * 1024


@pytest.mark.parametrize(
    ("steps", "heads", "expected"),
    [
        (2000, 1024, (1, 2048)),  # heads enough for every multiprocessor
        (2000, 264, (1, 2048)),
        (2000, 132, (1, 2048)),  # two segments gain nothing
        (2000, 88, (3, 704)),
        (2000, 8, (16, 128)),
        (20000, 8, (32, 640)),
        (128, 8, (1, 128)),
        (1, 1, (1, 64)),
    ],
)
def test_a_sequence_is_split_where_heads_are_few(
    steps: int, heads: int, expected: tuple[int, int]
) -> None:
    segments, each = cuda.split(steps, heads, 132)
    assert (segments, each) == expected
    assert (segments - 1) * each < steps <= segments * each


def test_only_tensors_on_a_device_are_supported() -> None:
    q = torch.zeros(1, 2, 1, 8)
    assert not cuda.supports(q, q)
    assert cuda_instances.MAX_WIDTH == 128
