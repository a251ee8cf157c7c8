"""Cases of causal linear attention for the CUDA kernels, and their truth in float64.

The inputs are views into buffers full of NaN, and their padded steps are NaN: whatever a kernel
reads that it must not shows in its results. What it writes beside its results `Guard` finds.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from profforce.kernels import cuda
from profforce.kernels.reference import causal_linear_attention_reference
from profforce.kernels.state import LinearInputs, LinearState

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
NAN = float("nan")


@dataclass(frozen=True)
class Tolerance:
    """``|got - truth| <= relative |truth| + absolute max |truth|``."""

    relative: float
    absolute: float


TOLERANCES = {
    F32: Tolerance(0.0, 2e-5),
    # Half an ulp for the rounding of the result, and what two bfloat16 parts leave of an operand.
    BF16: Tolerance(2**-8 * 1.01, 1e-4),
    F16: Tolerance(2**-11 * 1.01, 1e-4),
}
STATE_TOLERANCE = Tolerance(0.0, 2e-5)


@dataclass(frozen=True)
class Case:
    """One problem; shapes as in ``cuda.py``."""

    dtype: torch.dtype = F32
    batch: int = 2
    steps: int = 70
    heads: int = 2
    key: int = 32
    value: int = 32
    feature_map: str = "elu"
    lengths: tuple[int, ...] | None = None
    state: bool = True
    """With a first state, and a gradient of the last one."""
    layout: str = "fused"
    """``fused``: q, k, v from one [B, T, 3, H, K]; ``odd``: rows of an odd stride; ``far``: batches
    more than 2^31 elements apart; ``plain``."""
    grad: bool = True
    """With a gradient of the output, not only of the last state."""
    shift: float = 0.0
    """Added to q and k: far below zero, the normaliser is as small as eps."""

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        lengths = "" if self.lengths is None else "-L" + ".".join(map(str, self.lengths))
        extra = "-nostate" * (not self.state) + "-nograd" * (not self.grad)
        extra += f"-shift{self.shift:g}" * bool(self.shift)
        sizes = f"B{self.batch}-T{self.steps}-H{self.heads}-{self.key}x{self.value}"
        return f"{name}-{sizes}-{self.feature_map}-{self.layout}{lengths}{extra}"


@dataclass(frozen=True)
class Problem:
    """A case's tensors: what the kernels are given, and the truth."""

    inputs: LinearInputs
    grad_out: Tensor | None
    grad_s1: Tensor | None
    grad_z1: Tensor | None
    truth: dict[str, Tensor]
    """Outputs, final state and gradients, float64."""


@functools.cache
def build(case: Case) -> Problem:
    """The tensors of a case, on the CPU; the same every time."""
    g = torch.Generator().manual_seed(len(str(case)) + case.steps)
    head = (case.batch, case.steps, case.heads)

    def draw(*shape: int, dtype: torch.dtype = case.dtype) -> Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    q, k = (draw(*head, case.key) + case.shift for _ in range(2))
    if case.feature_map != "elu":  # keep the normaliser away from zero
        q, k = (q.abs() + 0.1 if case.feature_map == "identity" else q + 0.5 for q in (q, k))
    v, grad_out = draw(*head, case.value), draw(*head, case.value)
    state = case.batch, case.heads, case.key
    s0, z0 = draw(*state, case.value, dtype=F32), draw(*state, dtype=F32).abs() * 3
    grad_s1, grad_z1 = draw(*state, case.value, dtype=F32), draw(*state, dtype=F32)
    lengths = None if case.lengths is None else torch.tensor(case.lengths)
    if not case.state:
        s0 = z0 = grad_s1 = grad_z1 = None
    if not case.grad:
        grad_out = None
    truth = _truth(case, lengths, (q, k, v, s0, z0), (grad_out, grad_s1, grad_z1))
    padded = [_with_padding(x, lengths) for x in (q, k, v)]
    q, k, v = _laid_out(padded, case.layout)
    if grad_out is not None:
        (grad_out,) = _laid_out([_with_padding(grad_out, lengths)], "plain")
        if case.layout != "plain":
            (grad_out,) = _laid_out([grad_out], case.layout)
    inputs = LinearInputs(q, k, v, lengths, s0, z0, case.feature_map)
    return Problem(inputs, grad_out, grad_s1, grad_z1, truth)


def _truth(
    case: Case,
    lengths: Tensor | None,
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> dict[str, Tensor]:
    q, k, v, s0, z0 = (None if x is None else x.double().requires_grad_() for x in inputs)
    state = None
    leaves = [q, k, v]
    if s0 is not None:
        state = LinearState(s0, z0)
        leaves += [s0, z0]
    out, last = causal_linear_attention_reference(
        q, k, v, lengths=lengths, state=state, feature_map=case.feature_map
    )
    loss = sum(
        (y * d.double()).sum() for y, d in zip((out, *last), grads, strict=True) if d is not None
    )
    got = torch.autograd.grad(loss, leaves, allow_unused=True)
    names = ("dq", "dk", "dv", "ds0", "dz0")[: len(leaves)]
    found = {
        name: torch.zeros_like(x) if d is None else d
        for name, x, d in zip(names, leaves, got, strict=True)
    }
    return {"out": out.detach(), "s1": last.s.detach(), "z1": last.z.detach(), **found}


def _with_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[1]) >= lengths[:, None]
    return x.masked_fill(beyond[:, :, None, None], NAN)


def _laid_out(tensors: Sequence[Tensor], layout: str) -> list[Tensor]:
    """The same values as views into buffers of NaN."""
    batch, steps, heads, _ = tensors[0].shape
    width = max(x.shape[-1] for x in tensors)
    views = []
    if layout == "far":  # memory that is not written is not there
        buffer = torch.empty(batch << 31, dtype=tensors[0].dtype)
        for i, x in enumerate(tensors):
            strides = ((1 << 31) + 64, *x.stride()[1:])
            views.append(buffer.as_strided(x.shape, strides, i * x.numel()))
    elif layout == "plain":
        for x in tensors:
            buffer = torch.full((x.numel() + 64,), NAN, dtype=x.dtype)
            views.append(buffer[32:-32].view(x.shape))
    else:
        spare = 8 if layout == "fused" else 3
        shape = (batch + 2, steps, len(tensors), heads, width + spare)
        buffer = torch.full(shape, NAN, dtype=tensors[0].dtype)[1:-1]
        views = [buffer[:, :, i, :, : x.shape[-1]] for i, x in enumerate(tensors)]
        if layout == "odd":
            views = [buffer[:, :, i, :, 1 : 1 + x.shape[-1]] for i, x in enumerate(tensors)]
    for view, x in zip(views, tensors, strict=True):
        view.copy_(x)
    return views


def moved(x: Tensor | None, device: torch.device | str) -> Tensor | None:
    """The same view of a copy of the whole buffer on a device."""
    if x is None:
        return None
    size = x.untyped_storage().nbytes() // x.element_size()
    buffer = x.as_strided((size,), (1,), 0).to(device)
    return buffer.as_strided(x.shape, x.stride(), x.storage_offset())


class Guard:
    """Stands in for ``cuda._empty``: tensors start as NaN, with margins that must stay NaN."""

    MARGIN = 64

    def __init__(self) -> None:
        self._buffers: list[tuple[Tensor, int]] = []

    def __call__(
        self, shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        size = torch.Size(shape).numel()
        kind = dtype or like.dtype
        buffer = torch.full((size + 2 * self.MARGIN,), NAN, dtype=kind, device=like.device)
        self._buffers.append((buffer, size))
        return buffer[self.MARGIN : self.MARGIN + size].view(*shape)

    def check(self) -> list[str]:
        margin = self.MARGIN
        whole = all(
            bool(b[:margin].isnan().all() and b[margin + n :].isnan().all())
            for b, n in self._buffers
        )
        return [] if whole else ["a kernel wrote beside its results"]


def compare(case: Case, truth: dict[str, Tensor], got: dict[str, Tensor]) -> list[str]:
    """What is wrong with the results, one line a tensor; nothing if all is well."""
    problems = []
    for name, x in got.items():
        is_state = x.dtype == F32 and name in ("s1", "z1", "ds0", "dz0")
        limit = STATE_TOLERANCE if is_state else TOLERANCES[case.dtype]
        y = truth[name]
        error = (x.cpu().double() - y).abs()
        largest = y.abs().max().item() if y.numel() else 0.0
        excess = error - limit.relative * y.abs() - limit.absolute * largest
        if not bool((excess <= 0).all()):
            problems.append(f"{name}: error {error.max().item():.2e} of {largest:.2e}")
        if case.lengths is not None and name in ("out", "dq", "dk", "dv"):
            beyond = torch.arange(case.steps) >= torch.tensor(case.lengths)[:, None]
            if x.cpu()[beyond].count_nonzero():
                problems.append(f"{name}: padding is not zero")
    return problems


def check(case: "Case | StepCase") -> tuple[list[str], dict[str, Tensor]]:
    """Run the kernels through ``cuda.py``: what is wrong, one line a fault, and all results."""
    guard = Guard()
    with patch.object(cuda, "_empty", guard):
        if isinstance(case, Case):
            truth, got = build(case).truth, _sequence(case)
        else:
            truth, got = build(case.whole()).truth, _steps(case, guard)
    whole = case if isinstance(case, Case) else case.whole()
    return compare(whole, truth, got) + guard.check(), got


def _sequence(case: Case) -> dict[str, Tensor]:
    p = build(case)
    out, s1, z1 = cuda.forward(p.inputs)
    grads = cuda.backward(p.inputs, p.grad_out, p.grad_s1, p.grad_z1)
    names = ("out", "s1", "z1", "dq", "dk", "dv", "ds0", "dz0")
    got = dict(zip(names, (out, s1, z1, *grads), strict=True))
    if not case.state:
        del got["ds0"], got["dz0"]
    return got


@dataclass(frozen=True)
class StepCase:
    """A few recurrent steps in place; shapes as in ``cuda.py``."""

    dtype: torch.dtype = F32
    batch: int = 3
    heads: int = 2
    key: int = 32
    value: int = 32
    feature_map: str = "elu"
    layout: str = "fused"
    shift: float = 0.0
    state: bool = True

    def __str__(self) -> str:
        return f"step-{self.whole()}"

    def whole(self) -> Case:
        """The sequence that the steps make up."""
        sizes = (self.batch, 3, self.heads, self.key, self.value)
        extra = {"layout": self.layout, "shift": self.shift, "state": self.state}
        return Case(self.dtype, *sizes, self.feature_map, **extra)


def _steps(case: StepCase, guard: Guard) -> dict[str, Tensor]:
    x = build(case.whole()).inputs
    first = x.new_state() if x.s is None or x.z is None else LinearState(x.s, x.z)
    state = LinearState(*(guard(y.shape, y) for y in first))
    for now, y in zip(state, first, strict=True):
        now.copy_(y) if case.state else now.zero_()
    outs = []
    for t in range(x.q.shape[1]):
        inputs = (y[:, t] for y in (x.q, x.k, x.v))
        outs.append(cuda.step(*inputs, state, case.feature_map))
    return {"out": torch.stack(outs, 1), "s1": state.s, "z1": state.z}
