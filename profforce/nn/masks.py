"""Length masks, the one place where padding is defined."""

import torch
from torch import Tensor


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """``[B, size]`` bool, true where the position lies inside ``lengths [B]``."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` over the places where ``mask`` (broadcastable) is true; 0 if none is."""
    weights = mask.to(values.dtype).expand_as(values)
    return (values * weights).sum() / weights.sum().clamp(min=1)
