"""Causal linear attention in chunks of plain PyTorch, with its own backward pass.

Runs where no kernel fits: no C++ compiler, float64, widths above 128. Both passes take a slab of
heads at a time and the backward pass keeps nothing but the inputs, so that memory does not grow
with N x K x V over all heads.

Shapes: B batch, T time, H heads, K key width, V value width, C chunk, N chunks; b, h utterances and
heads of a slab.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.kernels.state import (
    EPS,
    LinearInputs,
    accumulation_dtype,
    map_slope,
    resolve_feature_map,
)

CHUNK = 64
SLAB = 4
"""Heads taken at once on the CPU: few enough to stay in the cache."""

Slab = tuple[slice, slice]
"""Which utterances, and which of their heads."""


def forward(x: LinearInputs) -> tuple[Tensor, Tensor, Tensor]:
    """``(out [B, T, H, V], s1 [B, H, K, V], z1 [B, H, K])``."""
    out = torch.zeros_like(x.v, memory_format=torch.contiguous_format)
    s1, z1 = x.new_state()
    for slab in _slabs(x):
        part = _Part.of(x, slab)
        _store(out, x, slab, (part.scores @ part.v + part.q @ part.s_before) / part.denominator)
        s1[slab] = part.s_before[:, :, -1] + part.k[:, :, -1].mT @ part.v[:, :, -1]
        z1[slab] = part.z_before[:, :, -1] + part.k[:, :, -1].sum(-2)
    return out, s1, z1


def backward(
    x: LinearInputs, grad_out: Tensor | None, grad_s1: Tensor | None, grad_z1: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to ``q, k, v, s0, z0``; None stands for a gradient of zero.

    With ``g_t = grad_out_t / denominator_t`` the gradient of the normaliser is
    ``e_t = -(g_t . numerator_t) / denominator_t``, and ``g_t . numerator_t`` is had from products
    that the other gradients need anyway, so that neither output nor normaliser need be kept.
    """
    grad_q, grad_k, grad_v = (
        torch.zeros_like(y, memory_format=torch.contiguous_format) for y in (x.q, x.k, x.v)
    )
    grad_s0, grad_z0 = x.new_state()
    for slab in _slabs(x):
        part = _Part.of(x, slab)
        g = torch.zeros_like(part.v)
        if grad_out is not None:
            g = _chunks(grad_out, x, slab) / part.denominator
        grad_q_part = g @ part.s_before.mT
        grad_scores = torch.tril(g @ part.v.mT)
        through = (part.q * grad_q_part).sum(-1) + (part.scores * grad_scores).sum(-1)
        e = -through[..., None] / part.denominator
        grad_scores = torch.tril(grad_scores + e)
        grad_q_part = grad_q_part + grad_scores @ part.k + e * part.z_before[..., None, :]
        r, grad_s0[slab] = _from_the_end(part.q.mT @ g, grad_s1, slab)
        r_sum, grad_z0[slab] = _from_the_end((e * part.q).sum(-2), grad_z1, slab)
        grad_k_part = part.v @ r.mT + grad_scores.mT @ part.q + r_sum[..., None, :]
        _store(grad_q, x, slab, grad_q_part * map_slope(x.feature_map, part.q))
        _store(grad_k, x, slab, grad_k_part * map_slope(x.feature_map, part.k))
        _store(grad_v, x, slab, part.k @ r + part.scores.mT @ g)
    return grad_q, grad_k, grad_v, grad_s0, grad_z0


@dataclass(frozen=True)
class _Part:
    """One slab in chunks, after the feature map and the masks."""

    q: Tensor
    """``[b, h, N, C, K]``, zero beyond the length."""
    k: Tensor
    """``[b, h, N, C, K]``, zero beyond the length."""
    v: Tensor
    """``[b, h, N, C, V]``, zero beyond the length."""
    scores: Tensor
    """``[b, h, N, C, C]``, lower triangular."""
    s_before: Tensor
    """``[b, h, N, K, V]``, state before each chunk."""
    z_before: Tensor
    """``[b, h, N, K]``"""
    denominator: Tensor
    """``[b, h, N, C, 1]``"""

    @staticmethod
    def of(x: LinearInputs, slab: Slab) -> "_Part":
        """Gather the slab and sum its states."""
        phi = resolve_feature_map(x.feature_map)
        q, k = _chunks(x.q, x, slab, phi), _chunks(x.k, x, slab, phi)
        v = _chunks(x.v, x, slab)
        scores = torch.tril(q @ k.mT)
        s_before = _before(k.mT @ v, None if x.s is None else x.s[slab])
        z_before = _before(k.sum(-2), None if x.z is None else x.z[slab])
        denominator = scores.sum(-1, keepdim=True) + q @ z_before[..., None] + EPS
        return _Part(q, k, v, scores, s_before, z_before, denominator)


def _slabs(x: LinearInputs) -> Iterator[Slab]:
    batch, _, heads, _ = x.q.shape
    if x.q.device.type != "cpu":  # there launches are dear and memory is plenty
        yield slice(0, batch), slice(0, heads)
        return
    for b in range(batch):
        for h in range(0, heads, SLAB):
            yield slice(b, b + 1), slice(h, h + SLAB)


def _chunks(
    y: Tensor, x: LinearInputs, slab: Slab, phi: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """A slab of ``y [B, T, H, K]`` mapped, zero beyond the length: ``[b, h, N, C, K]``."""
    batch, heads = slab
    part = y[batch, :, heads].to(accumulation_dtype(y.dtype))
    part = part if phi is None else phi(part)
    if x.lengths is not None:  # not by multiplying: what lies beyond may be NaN
        part = part.masked_fill(_beyond(x.lengths[batch], y.shape[1]), 0)
    chunk = min(CHUNK, y.shape[1])
    padded = F.pad(part, (0, 0, 0, 0, 0, -y.shape[1] % chunk))
    return torch.unflatten(padded, 1, (-1, chunk)).permute(0, 3, 1, 2, 4).contiguous()


def _beyond(lengths: Tensor, steps: int) -> Tensor:
    return (torch.arange(steps, device=lengths.device) >= lengths[:, None])[:, :, None, None]


def _store(out: Tensor, x: LinearInputs, slab: Slab, part: Tensor) -> None:
    """Write ``part [b, h, N, C, V]`` into ``out [B, T, H, V]``, zero beyond the length."""
    batch, heads = slab
    steps = out.shape[1]
    rows = part.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :steps]
    if x.lengths is not None:
        rows = rows.masked_fill(_beyond(x.lengths[batch], steps), 0)
    out[batch, :, heads] = rows.to(out.dtype)


def _before(added: Tensor, start: Tensor | None) -> Tensor:
    """Sums before each chunk of what the chunks ``added [b, h, N, ...]``, from ``start``."""
    first = torch.zeros_like(added[:, :, 0]) if start is None else start
    return torch.cat([first[:, :, None], added[:, :, :-1]], 2).cumsum(2)


def _from_the_end(added: Tensor, end: Tensor | None, slab: Slab) -> tuple[Tensor, Tensor]:
    """Sums after each chunk of what later chunks ``added [b, h, N, ...]``; and the sum of all."""
    after = _before(added.flip(2), None if end is None else end[slab]).flip(2)
    return after, after[:, :, 0] + added[:, :, 0]
