"""Which implementation of causal linear attention runs, told by device, type and widths alone."""

from typing import Protocol, cast

import torch
from torch import Tensor

from profforce.kernels import chunked, cpu
from profforce.kernels.state import EPS, LinearInputs, LinearState, resolve_feature_map


class Implementation(Protocol):
    """What every implementation gives, for one type of q, k and v."""

    def forward(self, x: LinearInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Output and final state."""

    def backward(
        self,
        x: LinearInputs,
        grad_out: Tensor | None,
        grad_s1: Tensor | None,
        grad_z1: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients with respect to ``q, k, v, s, z``."""


def implementation(q: Tensor, v: Tensor) -> Implementation:
    """The fastest that takes tensors like these."""
    if q.device.type == "cpu" and cpu.supports(q, v):
        return cpu
    if q.device.type == "cuda":
        from profforce.kernels import cuda

        if cuda.supports(q, v):
            return cast(Implementation, cuda)
    return chunked


def run_step(q: Tensor, k: Tensor, v: Tensor, state: LinearState, feature_map: str) -> Tensor:
    """The recurrent step of one type of q, k and v; ``state`` is updated in place."""
    fits = state.s.is_contiguous() and state.z.is_contiguous()
    if fits and q.device.type == "cpu" and cpu.supports(q, v):
        return cpu.step(q, k, v, state, feature_map)
    if fits and q.device.type == "cuda":
        from profforce.kernels import cuda

        if cuda.supports(q, v):
            out: Tensor = cuda.step(q, k, v, state, feature_map)
            return out
    return _pytorch_step(q, k, v, state, feature_map)


def _pytorch_step(q: Tensor, k: Tensor, v: Tensor, state: LinearState, name: str) -> Tensor:
    phi = resolve_feature_map(name)
    dtype = state.s.dtype
    fq, fk = phi(q.to(dtype)), phi(k.to(dtype))
    state.z.add_(fk)
    state.s.addcmul_(fk[..., None], v.to(dtype)[..., None, :])
    numerator = torch.matmul(fq[..., None, :], state.s)[..., 0, :]
    denominator = (fq * state.z).sum(-1, keepdim=True) + EPS
    return (numerator / denominator).to(v.dtype)


def describe(device: torch.device | str = "cpu") -> str:
    """What runs on a device, in words: for logs and ``profforce doctor``."""
    if torch.device(device).type == "cpu":
        return cpu.describe()
    if torch.device(device).type == "cuda":
        from profforce.kernels import cuda

        return str(cuda.describe(torch.device(device)))
    return "chunked PyTorch"
