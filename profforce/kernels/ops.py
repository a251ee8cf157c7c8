"""Causal linear attention: the chunked parallel form and the recurrent step.

Shapes: B batch, T time, H heads, K key width, V value width, C chunk, N chunks.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.kernels.state import (
    EPS,
    FeatureMapFn,
    LinearState,
    accumulation_dtype,
    empty_state,
    resolve_feature_map,
)

CHUNK = 128


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    state: LinearState | None = None,
    feature_map: str | FeatureMapFn = "elu",
) -> tuple[Tensor, LinearState]:
    """Causal attention with a kernel feature map (Katharopoulos et al. 2020, eq. 8-12).

    ``out_t = phi(q_t) S_t / (phi(q_t) . z_t + eps)`` with ``S_t = sum_{j<=t} phi(k_j) v_j^T``.
    Inside a chunk the scores are formed; between chunks only the state is carried.

    Args:
        q: queries ``[B, T, H, K]``.
        k: keys ``[B, T, H, K]``.
        v: values ``[B, T, H, V]``.
        lengths: valid steps ``[B]`` int64, 0 allowed. Keys beyond are masked after the feature
            map and outputs beyond are exactly zero, so the final state is the state at ``lengths``.
        state: sums from an earlier part of the sequence; splitting and resuming equals the whole.
        feature_map: a name of ``FEATURE_MAPS`` or any elementwise or rowwise callable.

    Returns:
        ``(out [B, T, H, V] in v's type, final state in the accumulation type)``, differentiable
        with respect to q, k, v and the state.

    Raises:
        ValueError: if the shapes do not fit together or the feature map is unknown.
    """
    _check_shapes(q, k, v)
    batch, steps, heads, width = q.shape
    phi = resolve_feature_map(feature_map)
    dtype = accumulation_dtype(q.dtype)
    if state is None:
        state = empty_state(batch, heads, width, v.shape[-1], like=q)
    if steps == 0:
        return v, state
    fq, fk, values = phi(q.to(dtype)), phi(k.to(dtype)), v.to(dtype)
    live = None
    if lengths is not None:
        live = (torch.arange(steps, device=q.device) < lengths[:, None])[:, :, None, None]
        fk = fk * live
    out, state = _chunked(fq, fk, values, state, min(CHUNK, steps))
    if live is not None:
        out = out * live
    return out.to(v.dtype), state


def causal_linear_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    *,
    feature_map: str | FeatureMapFn = "elu",
) -> tuple[Tensor, LinearState]:
    """One step of :func:`causal_linear_attention`, updating ``state`` in place.

    Args:
        q: query ``[B, H, K]``.
        k: key ``[B, H, K]``.
        v: value ``[B, H, V]``.
        state: updated in place, so that its storage stays fixed; not differentiable.

    Returns:
        ``(out [B, H, V], the same state)``.
    """
    phi = resolve_feature_map(feature_map)
    dtype = state.s.dtype
    fq, fk = phi(q.to(dtype)), phi(k.to(dtype))
    state.z.add_(fk)
    state.s.addcmul_(fk[..., None], v.to(dtype)[..., None, :])
    numerator = torch.matmul(fq[..., None, :], state.s)[..., 0, :]
    denominator = (fq * state.z).sum(-1, keepdim=True) + EPS
    return (numerator / denominator).to(v.dtype), state


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dim() != 4 or q.shape != k.shape or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            "expected q, k [B, T, H, K] and v [B, T, H, V]; got "
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )


def _chunked(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState, chunk: int
) -> tuple[Tensor, LinearState]:
    """Attention over whole chunks; q and k carry the feature map and the masks already."""
    steps = q.shape[1]
    pad = -steps % chunk

    def to_chunks(x: Tensor) -> Tensor:  # [B, T, H, K] -> [B, H, N, C, K]
        x = F.pad(x, (0, 0, 0, 0, 0, pad)) if pad else x
        return torch.unflatten(x, 1, (-1, chunk)).permute(0, 3, 1, 2, 4)

    qc, kc, vc = to_chunks(q), to_chunks(k), to_chunks(v)
    scores = torch.tril(qc @ kc.transpose(-1, -2))
    numerator = scores @ vc
    denominator = scores.sum(-1)
    s_chunk, z_chunk = kc.transpose(-1, -2) @ vc, kc.sum(-2)
    s_after = s_chunk.cumsum(2) + state.s[:, :, None]
    z_after = z_chunk.cumsum(2) + state.z[:, :, None]
    s_before = torch.cat([state.s[:, :, None], s_after[:, :, :-1]], 2)
    z_before = torch.cat([state.z[:, :, None], z_after[:, :, :-1]], 2)
    numerator = numerator + qc @ s_before
    denominator = denominator + (qc @ z_before[..., None])[..., 0] + EPS
    out = (numerator / denominator[..., None]).permute(0, 2, 3, 1, 4).flatten(1, 2)
    return out[:, :steps], LinearState(s_after[:, :, -1], z_after[:, :, -1])
