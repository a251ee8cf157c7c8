"""The C++ kernel of ``causal_linear.cpp`` on tensors: forward, backward and recurrent step.

Shapes: B batch, T time, H heads, K key width, V value width.
"""

import ctypes
import functools
import sys

import torch
from torch import Tensor

from profforce.kernels import native
from profforce.kernels.state import EPS, FEATURE_MAP_NUMBERS, LinearInputs, LinearState

MAX_WIDTH = 128
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Pointer = ctypes.c_void_p


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", Pointer),
        ("batch", ctypes.c_int64),
        ("time", ctypes.c_int64),
        ("head", ctypes.c_int64),
    ]


class _Problem(ctypes.Structure):
    _fields_ = [
        ("batch", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("key_width", ctypes.c_int32),
        ("value_width", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("feature_map", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("lengths", Pointer),
        ("parallel", Pointer),
    ]


class _Forward(ctypes.Structure):
    _fields_ = [
        ("problem", _Problem),
        *((name, _Tensor) for name in ("q", "k", "v", "out")),
        *((name, Pointer) for name in ("s0", "z0", "s1", "z1")),
    ]


class _Backward(ctypes.Structure):
    _fields_ = [
        ("problem", _Problem),
        *((name, _Tensor) for name in ("q", "k", "v", "grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, Pointer) for name in ("s0", "z0", "grad_s1", "grad_z1", "grad_s0", "grad_z0")),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        ("problem", _Problem),
        *((name, _Tensor) for name in ("q", "k", "v", "out")),
        *((name, Pointer) for name in ("s", "z")),
    ]


def supports(q: Tensor, v: Tensor) -> bool:
    """Whether the C++ kernel takes tensors of this type and width, and is there at all."""
    fits = q.dtype in _TYPES and max(q.shape[-1], v.shape[-1]) <= MAX_WIDTH
    return fits and native.library() is not None


def describe() -> str:
    """Which CPU implementation runs, in words."""
    library = native.library()
    return native.why_not() if library is None else library.name


def forward(x: LinearInputs) -> tuple[Tensor, Tensor, Tensor]:
    """``(out [B, T, H, V], s1 [B, H, K, V], z1 [B, H, K])``."""
    q, k, v = (_rows(y) for y in (x.q, x.k, x.v))
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    s1, z1 = x.new_state()
    problem = _problem(q, v, x.feature_map, q.shape[1], x.lengths)
    work = _Forward(problem, *map(_tensor, (q, k, v, out)), *map(_pointer, (x.s, x.z, s1, z1)))
    _call("pf_forward", work)
    return out, s1, z1


def backward(
    x: LinearInputs, grad_out: Tensor | None, grad_s1: Tensor | None, grad_z1: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to ``q, k, v, s0, z0``; None stands for a gradient of zero."""
    q, k, v = (_rows(y) for y in (x.q, x.k, x.v))
    g = torch.zeros_like(v) if grad_out is None else grad_out.to(v.dtype)
    g = _rows(g)
    grads = tuple(torch.empty_like(y, memory_format=torch.contiguous_format) for y in (q, k, v))
    grad_s0, grad_z0 = x.new_state()
    work = _Backward(
        _problem(q, v, x.feature_map, q.shape[1], x.lengths),
        *map(_tensor, (q, k, v, g, *grads)),
        *map(_pointer, (x.s, x.z, grad_s1, grad_z1, grad_s0, grad_z0)),
    )
    _call("pf_backward", work)
    grad_q, grad_k, grad_v = grads
    return grad_q, grad_k, grad_v, grad_s0, grad_z0


def step(q: Tensor, k: Tensor, v: Tensor, state: LinearState, feature_map: str) -> Tensor:
    """``q, k [B, H, K]``, ``v [B, H, V]`` -> ``[B, H, V]``; updates ``state`` in place."""
    q, k, v = (_rows(y[:, None]) for y in (q, k, v))
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    work = _Step(
        _problem(q, v, feature_map, 1, None),
        *map(_tensor, (q, k, v, out)),
        *map(_pointer, state),
    )
    _call("pf_step", work)
    return out[:, 0]


def _call(function: str, work: ctypes.Structure) -> None:
    library = native.library()
    assert library is not None, "callers ask supports() first"
    if getattr(library.handle, function)(ctypes.byref(work)):
        raise MemoryError(f"{function}: no memory for the workspace")


def _problem(
    q: Tensor, v: Tensor, feature_map: str, steps: int, lengths: Tensor | None
) -> _Problem:
    batch, _, heads, key_width = q.shape
    return _Problem(
        batch=batch,
        steps=steps,
        heads=heads,
        key_width=key_width,
        value_width=v.shape[-1],
        type=_TYPES[q.dtype],
        feature_map=FEATURE_MAP_NUMBERS[feature_map],
        threads=torch.get_num_threads(),
        eps=EPS,
        lengths=_pointer(lengths),
        parallel=openmp_parallel(),
    )


def _rows(x: Tensor) -> Tensor:
    """With an innermost stride of 1, as the kernel wants it; fused qkv needs no copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _tensor(x: Tensor) -> _Tensor:
    batch, time, head, _ = x.stride()
    return _Tensor(x.data_ptr(), batch, time, head)


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


@functools.cache
def openmp_parallel() -> int | None:
    """``GOMP_parallel`` of the OpenMP runtime that PyTorch has loaded, None if there is none.

    Its idle threads spin for a while after every PyTorch operator; threads of our own would have to
    wait for them.
    """
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except AttributeError:
        return None
    return ctypes.cast(function, Pointer).value
