"""The CUDA kernels on a device, through the public functions, against the reference in float64."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from profforce.kernels import cuda, cuda_instances
from profforce.kernels.ops import causal_linear_attention, causal_linear_step
from profforce.kernels.state import LinearState

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels" / "emulation"))

from cuda_cases import BF16, F16, F32, Case, StepCase, build, compare, moved

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = (F32, BF16, F16)
MAPS = ("elu", "relu", "identity")
WHOLE_STEPS, SPLIT_STEPS = 150, 450  # few heads: the longer ones are split over the sequence


def _run(case: Case, device: str = "cuda") -> dict[str, Tensor]:
    p = build(case)
    x = p.inputs
    leaves = [moved(y, device).requires_grad_() for y in (x.q, x.k, x.v)]
    state = None
    if x.s is not None and x.z is not None:
        state = LinearState(*(y.to(device).requires_grad_() for y in (x.s, x.z)))
    out, last = causal_linear_attention(
        *leaves, lengths=moved(x.lengths, device), state=state, feature_map=case.feature_map
    )
    ends = zip((out, *last), (p.grad_out, p.grad_s1, p.grad_z1), strict=True)
    outputs, grads = zip(*((y, moved(g, device)) for y, g in ends if g is not None), strict=True)
    inputs = [*leaves, *(state or ())]
    found = torch.autograd.grad(outputs, inputs, grads)
    names = ("dq", "dk", "dv", "ds0", "dz0")
    got = {"out": out, "s1": last.s, "z1": last.z} | dict(zip(names, found, strict=False))
    return {name: y.detach() for name, y in got.items()}


def _assert_right(case: Case, device: str = "cuda") -> None:
    assert compare(case, build(case).truth, _run(case, device)) == []


def test_the_kernels_run_here() -> None:
    q = torch.zeros(1, 2, 1, 8, device="cuda")
    assert cuda.supports(q, q)
    assert cuda.describe(q.device).startswith("CUDA sm_")


@pytest.mark.parametrize("steps", [WHOLE_STEPS, SPLIT_STEPS])
@pytest.mark.parametrize("width", cuda_instances.WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_instance_equals_the_reference(dtype: torch.dtype, width: int, steps: int) -> None:
    name = MAPS[(width // 16 + DTYPES.index(dtype)) % len(MAPS)]
    lengths = (steps, 0, steps - 65)
    count = torch.cuda.get_device_properties(0).multi_processor_count
    assert (cuda.split(steps, 6, count)[0] > 1) == (steps == SPLIT_STEPS)
    _assert_right(Case(dtype, 3, steps, 2, width, width, name, lengths))


@pytest.mark.parametrize(
    "case",
    [
        Case(F32, 9, 100, 1, 16, 16, lengths=(0, 1, 31, 32, 33, 63, 64, 65, 100)),
        Case(F32, 2, 70, 3, 5, 3, layout="odd", lengths=(70, 1)),
        Case(BF16, 2, 70, 3, 40, 24, layout="odd", state=False),
        Case(F16, 1, 1, 1, 80, 96, layout="plain", feature_map="identity"),
        Case(F32, 2, 20, 1, state=False, shift=-8),
        Case(F32, 2, 70, 1, grad=False, lengths=(70, 5)),
        Case(F32, 40, 70, 8, 64, 64, lengths=tuple(range(31, 71))),
    ],
    ids=str,
)
def test_edges_equal_the_reference(case: Case) -> None:
    _assert_right(case)


def test_results_are_reproducible_to_the_bit() -> None:
    case = Case(BF16, 2, SPLIT_STEPS, 2, 64, 64, lengths=(SPLIT_STEPS, 70))
    first, second = _run(case), _run(case)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_empty_batches_and_sequences() -> None:
    for shape in ((0, 5, 2, 8), (2, 0, 2, 8)):
        x = torch.zeros(shape, device="cuda", requires_grad=True)
        out, state = causal_linear_attention(x, x, x)
        assert out.shape == shape and state.s.shape == (shape[0], 2, 8, 8)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_tensors_of_another_device_than_the_current_one() -> None:
    with torch.cuda.device(0):
        _assert_right(Case(F32, lengths=(70, 33)), "cuda:1")
        assert torch.cuda.current_device() == 0


def test_the_current_stream_is_used() -> None:
    case = Case(F32, 2, SPLIT_STEPS, 2, 64, 64)
    _run(case)  # compiled and loaded before it is timed against the delay
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    x = build(case).inputs
    q, k, v = (torch.full(y.shape, float("nan"), device="cuda") for y in (x.q, x.k, x.v))
    sources = [moved(y, "cuda") for y in (x.q, x.k, x.v)]
    assert x.s is not None and x.z is not None
    state = LinearState(x.s.to("cuda"), x.z.to("cuda"))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the inputs come late; on another stream they were still NaN
        for y, source in zip((q, k, v), sources, strict=True):
            y.copy_(source)
        out, last = causal_linear_attention(q, k, v, state=state)
    stream.synchronize()
    got = {"out": out, "s1": last.s, "z1": last.z}
    assert compare(case, build(case).truth, got) == []


@pytest.mark.parametrize("width", cuda_instances.WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_equal_the_reference(dtype: torch.dtype, width: int) -> None:
    name = MAPS[(width // 16 + DTYPES.index(dtype)) % len(MAPS)]
    _assert_steps_right(StepCase(dtype, key=width, value=width, feature_map=name))


def test_steps_of_odd_widths_and_tiny_normalisers() -> None:
    _assert_steps_right(StepCase(F32, key=5, value=7, layout="odd"))
    _assert_steps_right(StepCase(F32, shift=-8, state=False))


def _assert_steps_right(case: StepCase) -> None:
    whole = case.whole()
    x = build(whole).inputs
    first = LinearState(x.s, x.z) if x.s is not None and x.z is not None else x.new_state()
    state = LinearState(*(y.to("cuda") if case.state else y.to("cuda").zero_() for y in first))
    outs = []
    for t in range(x.q.shape[1]):
        inputs = (moved(y, "cuda")[:, t] for y in (x.q, x.k, x.v))
        outs.append(causal_linear_step(*inputs, state, feature_map=case.feature_map)[0])
    got = {"out": torch.stack(outs, 1), "s1": state.s, "z1": state.z}
    assert compare(whole, build(whole).truth, got) == []


def test_the_step_is_captured_into_a_graph() -> None:
    case = StepCase(F32, key=64, value=64)
    whole = case.whole()
    p = build(whole)
    assert p.inputs.s is not None and p.inputs.z is not None
    state = LinearState(p.inputs.s.to("cuda"), p.inputs.z.to("cuda"))
    sequences = [y.to("cuda").contiguous() for y in (p.inputs.q, p.inputs.k, p.inputs.v)]
    inputs = [y[:, 0].clone() for y in sequences]
    scratch = LinearState(state.s.clone(), state.z.clone())
    causal_linear_step(*inputs, scratch)  # compiled and loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = causal_linear_step(*inputs, state)
    outs = []
    for t in range(whole.steps):
        for held, y in zip(inputs, sequences, strict=True):
            held.copy_(y[:, t])
        graph.replay()
        outs.append(out.clone())
    got = {"out": torch.stack(outs, 1), "s1": state.s, "z1": state.z}
    assert compare(whole, p.truth, got) == []
