"""Causal linear attention in its most obvious form: one loop over time. The truth for tests."""

import torch
from torch import Tensor

from profforce.kernels.state import (
    EPS,
    FeatureMapFn,
    LinearState,
    accumulation_dtype,
    empty_state,
    resolve_feature_map,
)


def causal_linear_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    state: LinearState | None = None,
    feature_map: str | FeatureMapFn = "elu",
) -> tuple[Tensor, LinearState]:
    """Same contract as :func:`profforce.kernels.ops.causal_linear_attention`."""
    batch, steps, heads, key_width = q.shape
    phi = resolve_feature_map(feature_map)
    dtype = accumulation_dtype(q.dtype)
    s, z = state or empty_state(batch, heads, key_width, v.shape[-1], like=q)
    outputs = []
    for t in range(steps):
        live = torch.ones(batch, dtype=dtype, device=q.device)
        if lengths is not None:
            live = (t < lengths).to(dtype)
        q_t = phi(q[:, t].to(dtype))
        k_t = phi(k[:, t].to(dtype)) * live[:, None, None]
        s = s + torch.einsum("bhk,bhv->bhkv", k_t, v[:, t].to(dtype))
        z = z + k_t
        numerator = torch.einsum("bhk,bhkv->bhv", q_t, s)
        denominator = torch.einsum("bhk,bhk->bh", q_t, z) + EPS
        outputs.append(numerator / denominator[..., None] * live[:, None, None])
    out = torch.stack(outputs, 1) if outputs else v.to(dtype)
    return out.to(v.dtype), LinearState(s, z)
