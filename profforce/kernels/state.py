"""State of causal linear attention, its inputs, and its feature maps.

Shapes: B batch, T time, H heads, K key width, V value width.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LinearInputs:
    """All that an implementation is given; checked by :mod:`profforce.kernels.ops`."""

    q: Tensor
    """``[B, T, H, K]``, before the feature map, any strides; T at least 1."""
    k: Tensor
    """``[B, T, H, K]``, the same type as q."""
    v: Tensor
    """``[B, T, H, V]``, the same type as q."""
    lengths: Tensor | None
    """``[B]`` int64 on the device of q; None: all steps are valid."""
    s: Tensor | None
    """``[B, H, K, V]`` contiguous in the accumulation type; None: zero."""
    z: Tensor | None
    """``[B, H, K]`` contiguous in the accumulation type; None: zero."""
    feature_map: str
    """A name of ``FEATURE_MAPS``."""

    def new_state(self) -> LinearState:
        """Uninitialised state of the right shape."""
        batch, _, heads, key_width = self.q.shape
        dtype = accumulation_dtype(self.q.dtype)
        return LinearState(
            self.q.new_empty(batch, heads, key_width, self.v.shape[-1], dtype=dtype),
            self.q.new_empty(batch, heads, key_width, dtype=dtype),
        )


def elu_plus_one(x: Tensor) -> Tensor:
    """``elu(x) + 1``, positive (Katharopoulos et al. 2020, eq. 7).

    Written without the cancellation of ``expm1(x) + 1``, whose relative error grows without bound
    for very negative ``x``.
    """
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def identity(x: Tensor) -> Tensor:
    """The keys and queries as they are; the normaliser may then vanish."""
    return x


FEATURE_MAPS: dict[str, FeatureMapFn] = {
    "elu": elu_plus_one,
    "relu": F.relu,
    "identity": identity,
}
FEATURE_MAP_NUMBERS = {name: number for number, name in enumerate(FEATURE_MAPS)}
"""How the C++ and CUDA sources call them."""


def map_slope(feature_map: str, phi: Tensor) -> Tensor:
    """Derivative of a map of ``FEATURE_MAPS``, told from its value ``phi`` alone."""
    if feature_map == "elu":
        return phi.clamp(max=1)
    if feature_map == "relu":
        return (phi > 0).to(phi.dtype)
    return torch.ones_like(phi)


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
