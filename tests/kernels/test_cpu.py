"""Every build of the C++ kernel, and chunked PyTorch, against the obvious loop in float64."""

import ctypes
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.kernels import build, chunked, cpu, dispatch, native
from profforce.kernels.ops import causal_linear_attention, causal_linear_step
from profforce.kernels.reference import causal_linear_attention_reference
from profforce.kernels.state import LinearInputs, LinearState

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Relative RMS error of outputs, states and gradients against float64."""

STEPS = [1, 2, 31, 32, 33, 63, 64, 65, 100]


def can_run(variant: build.Variant) -> bool:
    order = [build.BASELINE, build.AVX2, build.AVX512]
    return order.index(variant) <= order.index(native.best_variant())


FORMS = [v.name for v in build.variants() if can_run(v)] + ["pytorch"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The whole chain with one implementation forced."""
    if request.param != "pytorch" and build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv(native.OVERRIDE, request.param)
    yield request.param


def draw(
    batch: int, steps: int, heads: int, widths: tuple[int, int], seed: int, feature_map: str = "elu"
) -> list[Tensor]:
    """q, k, v, s, z in float64; away from zero denominators where the map allows them."""
    g = torch.Generator().manual_seed(seed)
    key, value = widths
    q, k = (torch.randn(batch, steps, heads, key, generator=g).double() for _ in range(2))
    if feature_map != "elu":
        q, k = q.abs() + 0.1, k.abs() + 0.1
    v = torch.randn(batch, steps, heads, value, generator=g).double()
    s = torch.randn(batch, heads, key, value, generator=g).double()
    return [q, k, v, s, torch.rand(batch, heads, key, generator=g).double() * 5]


def everything(
    attend: Callable[..., object], inputs: list[Tensor], **options: object
) -> list[Tensor]:
    """Output, final state, and gradients of a loss that uses all three."""
    q, k, v, s, z = (x.detach().requires_grad_() for x in inputs)
    out, (s1, z1) = attend(q, k, v, state=LinearState(s, z), **options)  # type: ignore[misc]
    weights = [torch.linspace(-1, 1.5, x.numel()).view_as(x).double() for x in (out, s1, z1)]
    loss = sum((x.double() * w).sum() for x, w in zip((out, s1, z1), weights, strict=True))
    return [out, s1, z1, *torch.autograd.grad(loss, (q, k, v, s, z))]  # type: ignore[arg-type]


def relative_rms(ours: Tensor, truth: Tensor) -> float:
    error = (ours.detach().double() - truth.detach()).square().mean().sqrt()
    return float(error / truth.detach().square().mean().sqrt().clamp_min(1e-12))


def assert_near(ours: list[Tensor], truth: list[Tensor], dtype: torch.dtype) -> None:
    names = ("out", "s1", "z1", "dq", "dk", "dv", "ds", "dz")
    for name, mine, right in zip(names, ours, truth, strict=True):
        assert not mine.isnan().any(), name
        assert relative_rms(mine, right) <= TOLERANCE[dtype], name


@settings(max_examples=30, deadline=None)
@given(
    form=st.sampled_from(FORMS),
    batch=st.integers(1, 3),
    steps=st.sampled_from(STEPS),
    heads=st.integers(1, 3),
    widths=st.sampled_from([(16, 16), (32, 32), (64, 64), (40, 24), (20, 7), (5, 48), (128, 128)]),
    feature_map=st.sampled_from(["elu", "relu", "identity"]),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 999),
)
def test_outputs_states_and_gradients(
    form: str,
    batch: int,
    steps: int,
    heads: int,
    widths: tuple[int, int],
    feature_map: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    if form != "pytorch" and build.find_compiler() is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.OVERRIDE, form)
        inputs = draw(batch, steps, heads, widths, seed, feature_map)
        q, k, v = (x.to(dtype) for x in inputs[:3])
        s, z = (x.float() for x in inputs[3:])
        lengths = torch.randint(
            0, steps + 1, (batch,), generator=torch.Generator().manual_seed(seed)
        )
        options = {"lengths": lengths, "feature_map": feature_map}
        ours = everything(causal_linear_attention, [q, k, v, s, z], **options)
        exact = [x.double() for x in (q, k, v, s, z)]
        truth = everything(causal_linear_attention_reference, exact, **options)
        assert_near(ours, truth, dtype)
        assert ours[0].dtype == dtype and ours[1].dtype == torch.float32


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_steps_equal_the_reference(form: str, dtype: torch.dtype) -> None:
    for widths in ((16, 16), (64, 64), (40, 24), (20, 7), (33, 128)):
        q, k, v, s, z = draw(2, 12, 3, widths, 1)
        q, k, v = (x.to(dtype) for x in (q, k, v))
        truth, end = causal_linear_attention_reference(
            q.double(), k.double(), v.double(), state=LinearState(s, z)
        )
        state = LinearState(s.float(), z.float())
        where = state.s.data_ptr()
        for t in range(12):
            out, state = causal_linear_step(q[:, t], k[:, t], v[:, t], state)
            assert relative_rms(out, truth[:, t]) <= TOLERANCE[dtype]
        assert relative_rms(state.s, end.s) <= 2e-6 and relative_rms(state.z, end.z) <= 2e-6
        assert state.s.data_ptr() == where


def test_fused_qkv_is_read_where_it_lies_and_gives_the_same(form: str) -> None:
    g = torch.Generator().manual_seed(0)
    fused = torch.randn(2, 50, 3, 2, 24, generator=g)
    views = fused.unbind(2)
    copies = [x.contiguous() for x in views]
    for ours, other in zip(
        causal_linear_attention(*views)[1], causal_linear_attention(*copies)[1], strict=True
    ):
        assert torch.equal(ours, other)
    transposed = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in copies]
    out, _ = causal_linear_attention(*transposed)
    torch.testing.assert_close(out, causal_linear_attention(*copies)[0], rtol=0, atol=0)


def test_expanded_inputs_and_lengths(form: str) -> None:
    q, k, v, _, _ = (x.float() for x in draw(1, 40, 2, (16, 16), 0))
    out, _ = causal_linear_attention(
        *(x.expand(3, -1, -1, -1) for x in (q, k, v)), lengths=torch.tensor([25]).expand(3)
    )
    alone, _ = causal_linear_attention(q, k, v, lengths=torch.tensor([25]))
    assert torch.equal(out, alone.expand(3, -1, -1, -1))


def test_tiny_and_cancelling_denominators_stay_finite_and_right(form: str) -> None:
    q, k, v, _, _ = draw(1, 40, 1, (16, 16), 3)
    far = [(q - 20).float(), (k - 20).float(), v.float()]  # features of about e^-20: eps rules
    out, _ = causal_linear_attention(*far)
    truth, _ = causal_linear_attention_reference(*(x.double() for x in far))
    assert relative_rms(out, truth) <= 2e-6
    out, _ = causal_linear_attention((q - 200).float(), (k - 200).float(), v.float())
    assert torch.isfinite(out).all()
    huge, _ = causal_linear_attention((q * 1e4).float(), (k * 1e4).float(), v.float())
    assert torch.isfinite(huge).all()


def test_nan_within_the_length_is_shown_and_not_hidden(form: str) -> None:
    for feature_map in ("elu", "relu", "identity"):
        for position in range(3):
            inputs = [x.float() for x in draw(1, 40, 1, (16, 16), 3)[:3]]
            inputs[position][0, 20, 0, 3] = float("nan")
            out, _ = causal_linear_attention(*inputs, feature_map=feature_map)
            assert out[0, 20:].isnan().any(), (feature_map, position)


@pytest.mark.parametrize("openmp", [True, False])
def test_threads_give_the_same_bytes(
    form: str, openmp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each (batch, head) is summed by one thread, whichever it is."""
    if not openmp:
        monkeypatch.setattr(cpu, "openmp_parallel", lambda: None)
    inputs = [x.float() for x in draw(3, 300, 4, (32, 32), 5)]
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(everything(causal_linear_attention, inputs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for ours, first in zip(other, results[0], strict=True):
            assert torch.equal(ours, first) or form == "pytorch"


def test_calls_from_several_python_threads_do_not_meet(form: str) -> None:
    inputs = [x.float() for x in draw(2, 100, 2, (32, 32), 6)]
    expected = everything(causal_linear_attention, inputs)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            found = everything(causal_linear_attention, inputs)
            if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_float16_conversion_is_that_of_pytorch() -> None:
    """The C++ kernel converts by hand: all 65,536 numbers there, and roundings back."""
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        values = every.view(dtype)[None, None, :, None].expand(1, 1, 65536, 16).contiguous()
        ones = torch.ones_like(values)
        x = LinearInputs(ones, ones, values, None, None, None, "identity")
        out, s, _ = cpu.forward(x)  # one step: (q . k) v / (q . k + eps)
        assert torch.equal(s[0, :, 0].nan_to_num(7), values[0, 0].float().nan_to_num(7))
        expected = (values[0, 0].float() * 16 * torch.tensor(1.0 / (16 + 1e-6))).to(dtype)
        assert torch.equal(out[0, 0].nan_to_num(7), expected.nan_to_num(7))


def test_widths_and_types_beyond_the_kernel_fall_to_pytorch() -> None:
    wide = torch.zeros(1, 4, 1, 129)
    narrow = torch.zeros(1, 4, 1, 16)
    assert dispatch.implementation(wide, narrow) is chunked
    assert dispatch.implementation(narrow, wide) is chunked
    assert dispatch.implementation(narrow.double(), narrow.double()) is chunked


def test_no_memory_is_an_error_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    x = torch.zeros(1, 4, 1, 16)
    work = cpu._Backward(cpu._problem(x, x, "elu", 2**48, None))
    library = native.library()
    assert library is not None
    with pytest.raises(MemoryError, match="pf_backward"):
        cpu._call("pf_backward", work)
    assert library.handle.pf_backward(ctypes.byref(work)) == 1
