"""The CUDA C++ kernels of ``causal_linear.cu`` on tensors: forward, backward and recurrent step.

Shapes: B batch, T time, H heads, K key width, V value width.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from profforce.kernels import nvrtc
from profforce.kernels.cuda_instances import MAX_WIDTH, TYPES, WIDTHS, Instance, instance, instances
from profforce.kernels.state import FEATURE_MAP_NUMBERS, LinearInputs, LinearState

__all__ = ["Instance", "backward", "describe", "forward", "instances", "step", "supports"]

log = logging.getLogger(__name__)

SEGMENT_STEPS = 64
"""Segments of a sequence are multiples of this, which every kernel's chunk divides."""
BLOCKS_WANTED = 2
"""Blocks a multiprocessor, below which a sequence is split into segments."""

_DTYPES = dict(zip((torch.float32, torch.bfloat16, torch.float16), TYPES, strict=True))
_PACK = 4


class Kernel(Protocol):
    """What :func:`profforce.kernels.nvrtc.load` gives."""

    def launch(
        self,
        grid: tuple[int, int, int],
        block: int,
        shared_bytes: int,
        stream: int,
        args: Sequence[int | float],
    ) -> None:
        """Queue it on a stream."""


@dataclass(frozen=True)
class Device:
    """A CUDA device, as far as planning and launching need to know it."""

    index: int
    arch: str
    """Compute capability without a dot, such as ``90``."""
    multiprocessors: int

    def load(self, made: Instance) -> Kernel:
        """The kernel of an instance, compiled at first use."""
        return nvrtc.load(_source(), made.name, made.macros, self.index)

    def stream(self) -> int:
        """The raw stream that PyTorch queues on now."""
        return int(torch.cuda.current_stream(self.index).cuda_stream)


def supports(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels take tensors of this type and width, and can be compiled here at all."""
    fits = q.dtype in _DTYPES and 0 < q.shape[-1] <= MAX_WIDTH and 0 < v.shape[-1] <= MAX_WIDTH
    return fits and q.is_cuda and _available()


def describe(device: torch.device) -> str:
    """Which implementation runs on a CUDA device, in words."""
    if problem := nvrtc.why_unavailable():
        return f"chunked PyTorch ({problem})"
    index = torch.cuda.current_device() if device.index is None else device.index
    return f"CUDA sm_{nvrtc.architecture(index)}"


def forward(x: LinearInputs) -> tuple[Tensor, Tensor, Tensor]:
    """``(out [B, T, H, V] in v's type, s1 [B, H, K, V], z1 [B, H, K])``.

    Raises:
        KernelError: if a kernel cannot be compiled or launched.
    """
    p = _Problem(x)
    out = _empty(p.v.shape, p.v)
    s1, z1 = p.new_state()
    before = p.states_before(x.s, x.z, s1, z1)
    last = (0, 0) if before.sums is not None else (_address(s1), _address(z1))
    tensors = [*_rows_of(p.q), *_rows_of(p.k), *_rows_of(p.v)]
    p.launch("pf_forward", [*tensors, *before.arguments, _address(out), *last])
    return out, s1, z1


def backward(
    x: LinearInputs, grad_out: Tensor | None, grad_s1: Tensor | None, grad_z1: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to ``q, k, v, s0, z0``; None stands for a gradient of zero.

    Raises:
        KernelError: if a kernel cannot be compiled or launched.
    """
    g = torch.zeros_like(x.v) if grad_out is None else grad_out.to(x.v.dtype)
    p = _Problem(x, g)
    assert p.g is not None
    dq, dk, dv = (_empty(y.shape, y) for y in (p.q, p.k, p.v))
    ds0, dz0 = p.new_state()
    tensors = [*_rows_of(p.q), *_rows_of(p.k), *_rows_of(p.v), *_rows_of(p.g)]
    normaliser = _empty((2, p.batch * p.heads, p.steps), p.q, torch.float32)
    den, dden = _address(normaliser[0]), _address(normaliser[1])

    before = p.states_before(x.s, x.z, None, None)
    p.launch("pf_grad_q", [*tensors, *before.arguments, _address(dq), den, dden])
    after = p.gradients_after(grad_s1, grad_z1, den, dden, ds0, dz0)
    first = (0, 0) if after.sums is not None else (_address(ds0), _address(dz0))
    ends = [den, dden, _address(dk), _address(dv), *first]
    p.launch("pf_grad_kv", [*tensors, *after.arguments, *ends])
    return dq, dk, dv, ds0, dz0


def step(q: Tensor, k: Tensor, v: Tensor, state: LinearState, feature_map: str) -> Tensor:
    """``q, k [B, H, K]``, ``v [B, H, V]`` -> ``[B, H, V]``; updates ``state`` in place.

    One launch, with no synchronisation, so that it can be captured into a CUDA graph.

    Raises:
        KernelError: if the kernel cannot be compiled or launched.
        ValueError: if the state is not float32.
    """
    if state.s.dtype != torch.float32 or state.z.dtype != torch.float32:
        raise ValueError(f"expected a float32 state; got {state.s.dtype} and {state.z.dtype}")
    q, k, v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
    batch, heads, key_width = q.shape
    value_width = v.shape[-1]
    out = _empty(v.shape, v)
    kernel, made = _kernel(_device(q.device), "pf_step", _DTYPES[q.dtype], key_width, value_width)
    s = state.s.data_ptr()
    sizes = [heads, key_width, value_width, FEATURE_MAP_NUMBERS[feature_map]]
    packed = int(value_width % _PACK == 0 and s % (_PACK * 4) == 0)
    inputs = [a for y in (q, k, v) for a in (y.data_ptr(), y.stride(0), y.stride(1))]
    ends = [s, state.z.data_ptr(), out.data_ptr()]
    stream = _device(q.device).stream()
    args = [*sizes, packed, *inputs, *ends]
    kernel.launch((batch * heads, 1, 1), made.block, made.shared_bytes, stream, args)
    return out


@dataclass(frozen=True)
class _Starts:
    """The state that each segment starts from, as the kernels are told it."""

    arguments: tuple[int, int, int, int]
    """Addresses of S and z of the first segment, and their strides from one to the next."""
    sums: Tensor | None = field(default=None)
    """The workspace behind them, held while kernels are queued; None with one segment."""


class _Problem:
    """One call's sizes, and how its sequence is split; launches the kernels over sequences."""

    def __init__(self, x: LinearInputs, grad_out: Tensor | None = None) -> None:
        self.q, self.k, self.v = (_unit_stride(y) for y in (x.q, x.k, x.v))
        self.g = None if grad_out is None else _unit_stride(grad_out)
        self.batch, self.steps, self.heads, self.key_width = self.q.shape
        self.value_width = self.v.shape[-1]
        self.device = _device(self.q.device)
        self.stream = self.device.stream()
        self.segments, self.segment = split(
            self.steps, self.batch * self.heads, self.device.multiprocessors
        )
        self.lengths = x.lengths
        tensors = [y for y in (self.q, self.k, self.v, self.g) if y is not None]
        self._sizes = [
            _address(x.lengths),
            self.steps,
            self.heads,
            self.key_width,
            self.value_width,
            self.segment,
            FEATURE_MAP_NUMBERS[x.feature_map],
            int(all(map(_is_packed, tensors))),
        ]

    def new_state(self) -> tuple[Tensor, Tensor]:
        """Uninitialised S and z."""
        shape = (self.batch, self.heads, self.key_width)
        s = _empty((*shape, self.value_width), self.q, torch.float32)
        return s, _empty(shape, self.q, torch.float32)

    def launch(self, name: str, args: list[int]) -> None:
        """A kernel over every segment of every head."""
        grid = (self.batch * self.heads, self.segments, 1)
        self._queue(name, grid, [*self._sizes, *args])

    def states_before(
        self, s0: Tensor | None, z0: Tensor | None, s1: Tensor | None, z1: Tensor | None
    ) -> _Starts:
        """States before each segment; with more than one, the last state to ``s1, z1`` if given."""
        if self.segments == 1:
            return self._given(s0, z0)
        sums = self._workspace()
        self.launch("pf_states", [*_rows_of(self.k), *_rows_of(self.v), _address(sums)])
        return self._prefix(sums, False, (s0, z0, s1, z1))

    def gradients_after(
        self, s1: Tensor | None, z1: Tensor | None, den: int, dden: int, s0: Tensor, z0: Tensor
    ) -> _Starts:
        """Gradients of the state after each segment; with more, the first state's to ``s0, z0``."""
        if self.segments == 1:
            return self._given(s1, z1)
        assert self.g is not None
        sums = self._workspace()
        tensors = [*_rows_of(self.q), *_rows_of(self.g)]
        self.launch("pf_grad_states", [*tensors, den, dden, _address(sums)])
        return self._prefix(sums, True, (s1, z1, s0, z0))

    def _given(self, s: Tensor | None, z: Tensor | None) -> _Starts:
        area = self.key_width * self.value_width
        return _Starts((_address(s), _address(z), area, self.key_width))

    def _workspace(self) -> Tensor:
        size = self.key_width * (self.value_width + 1)
        heads = self.batch * self.heads
        return _empty((heads, self.segments, size), self.q, torch.float32)

    def _prefix(self, sums: Tensor, backwards: bool, ends: tuple[Tensor | None, ...]) -> _Starts:
        area, size = self.key_width * self.value_width, sums.shape[-1]
        made = instance("pf_prefix", self.device.arch, 0, WIDTHS[0])
        grid = (self.batch * self.heads, -(-size // made.block), 1)
        sizes = [self.segments, area, self.key_width, int(backwards)]
        self._queue("pf_prefix", grid, [_address(sums), *sizes, *map(_address, ends)])
        return _Starts((_address(sums), _address(sums) + 4 * area, size, size), sums)

    def _queue(self, name: str, grid: tuple[int, int, int], args: list[int]) -> None:
        type_code = _DTYPES[self.q.dtype]
        kernel, made = _kernel(self.device, name, type_code, self.key_width, self.value_width)
        kernel.launch(grid, made.block, made.shared_bytes, self.stream, args)


def split(steps: int, heads: int, multiprocessors: int) -> tuple[int, int]:
    """Into how many segments a sequence is split, and how long they are.

    Few heads leave multiprocessors idle. A split costs a pass for the segments' sums, about half
    of a full one, and two more launches, so that two segments would gain nothing.

    Args:
        steps: T.
        heads: batch times heads.
        multiprocessors: of the device.

    Returns:
        ``(segments, steps a segment)``, the latter a multiple of ``SEGMENT_STEPS``.
    """
    chunks = max(1, -(-steps // SEGMENT_STEPS))
    wanted = -(-BLOCKS_WANTED * multiprocessors // max(1, heads))
    segments = min(wanted, chunks // 2)
    if heads >= BLOCKS_WANTED * multiprocessors or segments < 3:
        segments = 1
    each = -(-chunks // segments)
    return -(-chunks // each), each * SEGMENT_STEPS


@functools.lru_cache(maxsize=512)
def _kernel(
    device: Device, name: str, type_code: int, key_width: int, value_width: int
) -> tuple[Kernel, Instance]:
    width = next(w for w in WIDTHS if w >= max(key_width, value_width))
    made = instance(name, device.arch, type_code, width)
    return device.load(made), made


@functools.cache
def _device(device: torch.device) -> Device:
    assert device.index is not None, "a tensor's device has an index"
    count = torch.cuda.get_device_properties(device.index).multi_processor_count
    return Device(device.index, nvrtc.architecture(device.index), count)


@functools.cache
def _source() -> str:
    return Path(__file__).with_name("causal_linear.cu").read_text(encoding="utf-8")


@functools.cache
def _available() -> bool:
    problem = nvrtc.why_unavailable()
    if problem:
        log.warning("CUDA attention runs as chunked PyTorch: %s", problem)
    return problem is None


def _unit_stride(x: Tensor) -> Tensor:
    """With an innermost stride of 1, as the kernels want it; fused qkv needs no copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _is_packed(x: Tensor) -> bool:
    """Whether every row can be read four elements at a time."""
    parts = (x.shape[-1], *x.stride()[:-1])
    return x.data_ptr() % (_PACK * x.element_size()) == 0 and all(n % _PACK == 0 for n in parts)


def _rows_of(x: Tensor) -> tuple[int, int, int, int]:
    batch, time, head, _ = x.stride()
    return x.data_ptr(), batch, time, head


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
