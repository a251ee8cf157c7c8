"""Equal-length crops of two behaviours, so that the discriminator cannot win on length."""

import torch
from torch import Tensor


def paired_crops(
    first: Tensor,
    second: Tensor,
    first_lengths: Tensor,
    second_lengths: Tensor,
    crop_steps: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut the same window out of each pair of sequences.

    A pair's window is as long as the shorter of the two, at most ``crop_steps``, and starts at
    the same step in both: neither length, padding nor position tells the halves apart.

    Args:
        first: ``[B, U1, C]``.
        second: ``[B, U2, C]``.
        first_lengths: ``[B]``, each >= 1.
        second_lengths: ``[B]``, each >= 1.
        crop_steps: longest window.
        generator: draws the windows' starts.

    Returns:
        ``(first [B, L, C], second [B, L, C], lengths [B])``, zero beyond ``lengths``.
    """
    shorter = torch.minimum(first_lengths, second_lengths)
    lengths = shorter.clamp(max=crop_steps)
    spread = torch.rand(len(lengths), generator=generator).to(lengths.device)
    starts = (spread * (shorter - lengths + 1)).long()
    window = torch.arange(int(lengths.max()), device=lengths.device)
    index = starts[:, None] + window
    mask = (window < lengths[:, None])[..., None]

    def cut(x: Tensor) -> Tensor:
        places = index.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2])
        return x.gather(1, places) * mask

    return cut(first), cut(second), lengths
