"""Causal linear attention in chunks of plain PyTorch, differentiated by autograd: a yardstick.

What one writes without kernels of one's own. In float64 it is the reference of the kernel suite.

Shapes: B batch, T time, H heads, K key width, V value width, C chunk, N chunks.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.kernels.state import EPS, elu_plus_one

CHUNK = 128


def plain_chunked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Feature map elu + 1 and normaliser included; no lengths, no state.

    Args:
        q: queries ``[B, T, H, K]``.
        k: keys ``[B, T, H, K]``.
        v: values ``[B, T, H, V]``.

    Returns:
        ``[B, T, H, V]``, summed in the type of the inputs.
    """
    steps = q.shape[1]
    chunk = min(CHUNK, steps)
    qc, kc, vc = (_to_chunks(x, chunk) for x in (elu_plus_one(q), elu_plus_one(k), v))
    scores = torch.tril(qc @ kc.mT)
    s_before, z_before = _sum_before(kc.mT @ vc), _sum_before(kc.sum(-2))
    numerator = scores @ vc + qc @ s_before
    denominator = scores.sum(-1, keepdim=True) + qc @ z_before[..., None] + EPS
    return (numerator / denominator).permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :steps]


def _to_chunks(x: Tensor, chunk: int) -> Tensor:
    """``[B, T, H, K]`` to ``[B, H, N, C, K]``, zeros at the end."""
    padded = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % chunk))
    return torch.unflatten(padded, 1, (-1, chunk)).permute(0, 3, 1, 2, 4)


def _sum_before(added: Tensor) -> Tensor:
    """What the chunks before each one ``added [B, H, N, ...]``."""
    return torch.cat([torch.zeros_like(added[:, :, :1]), added[:, :, :-1]], 2).cumsum(2)
