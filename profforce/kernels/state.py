"""State of causal linear attention, and its feature maps.

Shapes: B batch, H heads, K key width, V value width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-6
"""Added to the normaliser in every form: parallel, recurrent, CPU and CUDA."""

FeatureMapFn = Callable[[Tensor], Tensor]


class LinearState(NamedTuple):
    """Sums over the keys seen so far, in the accumulation type (float32, or float64)."""

    s: Tensor
    """``[B, H, K, V]``, sum of phi(k) v^T."""
    z: Tensor
    """``[B, H, K]``, sum of phi(k)."""


def elu_plus_one(x: Tensor) -> Tensor:
    """``elu(x) + 1``, positive (Katharopoulos et al. 2020, eq. 7)."""
    return F.elu(x) + 1


def identity(x: Tensor) -> Tensor:
    """The keys and queries as they are; the normaliser may then vanish."""
    return x


FEATURE_MAPS: dict[str, FeatureMapFn] = {
    "elu": elu_plus_one,
    "relu": F.relu,
    "identity": identity,
}


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of sums and state for inputs of ``dtype``: float64 stays, all else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def empty_state(
    batch: int, heads: int, key_width: int, value_width: int, *, like: Tensor
) -> LinearState:
    """Zero state on the device of ``like``, in its accumulation type."""
    dtype = accumulation_dtype(like.dtype)
    return LinearState(
        torch.zeros(batch, heads, key_width, value_width, dtype=dtype, device=like.device),
        torch.zeros(batch, heads, key_width, dtype=dtype, device=like.device),
    )


def resolve_feature_map(feature_map: str | FeatureMapFn) -> FeatureMapFn:
    """The function behind a name of ``FEATURE_MAPS``, or the callable itself.

    Raises:
        ValueError: for an unknown name.
    """
    if callable(feature_map):
        return feature_map
    if feature_map not in FEATURE_MAPS:
        known = ", ".join(FEATURE_MAPS)
        raise ValueError(f"unknown feature map '{feature_map}'; expected one of {known}")
    return FEATURE_MAPS[str(feature_map)]
