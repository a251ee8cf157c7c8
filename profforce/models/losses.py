"""Losses of a teacher-forced pass.

Shapes: B batch, T mel frames, U decoder steps, S symbols, M mel channels, G guided heads.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.models.tts import TeacherForced, TTSModel
from profforce.nn.masks import length_mask, masked_mean


def mel_loss(predicted: Tensor, target: Tensor, lengths: Tensor, deviation: Tensor) -> Tensor:
    """L1 + L2 over valid frames of mels ``[B, T, M]``, in units of ``deviation [M]``."""
    mask = length_mask(lengths, target.shape[1])[..., None]
    difference = (predicted - target) / deviation
    return masked_mean(difference.abs() + difference.square(), mask)


def stop_targets(lengths: Tensor, size: int) -> Tensor:
    """``[B, size]`` float: 1 on the last frame of each utterance, 0 before."""
    return (torch.arange(size, device=lengths.device) == lengths[:, None] - 1).float()


def stop_loss(
    logits: Tensor, lengths: Tensor, positive_weight: float, targets: Tensor | None = None
) -> Tensor:
    """Cross-entropy of ``logits [B, T]``, frames that should end weighted against the many others.

    ``targets [B, T]`` are 1 where it should end; on the last frame alone when not given.
    """
    if targets is None:
        targets = stop_targets(lengths, logits.shape[1])
    loss = F.binary_cross_entropy_with_logits(
        logits,
        targets.to(logits.dtype),
        pos_weight=logits.new_tensor(positive_weight),
        reduction="none",
    )
    return masked_mean(loss, length_mask(lengths, logits.shape[1]))


def guided_attention_loss(
    alignments: Tensor, symbol_lengths: Tensor, step_lengths: Tensor, sigma: float
) -> Tensor:
    """Penalty on attention far from the diagonal (Tachibana et al. 2018, arXiv:1710.08969, eq. 7).

    Args:
        alignments: ``[B, G, U, S]``.
        symbol_lengths: ``[B]``.
        step_lengths: ``[B]``, decoder steps.
        sigma: width of the diagonal, in units of the utterance's length.
    """
    steps, symbols = alignments.shape[2:]
    u = torch.arange(steps, device=alignments.device) / step_lengths[:, None].clamp(min=1)
    s = torch.arange(symbols, device=alignments.device) / symbol_lengths[:, None].clamp(min=1)
    away = 1 - torch.exp(-((u[:, :, None] - s[:, None, :]) ** 2) / (2 * sigma**2))
    mask = (
        length_mask(step_lengths, steps)[:, :, None]
        & length_mask(symbol_lengths, symbols)[:, None, :]
    )
    return masked_mean(alignments * away[:, None].to(alignments.dtype), mask[:, None])


def reconstruction_losses(
    model: TTSModel,
    out: TeacherForced,
    *,
    mel: Tensor,
    mel_lengths: Tensor,
    symbol_lengths: Tensor,
    stop_positive_weight: float,
    guided_sigma: float,
) -> dict[str, Tensor]:
    """The unweighted terms ``mel``, ``mel_before``, ``stop`` and ``guided`` of one pass."""
    steps = -(-mel_lengths // model.config.reduction_factor)
    return {
        "mel": mel_loss(out.mel, mel, mel_lengths, model.mel_std),
        "mel_before": mel_loss(out.mel_before, mel, mel_lengths, model.mel_std),
        "stop": stop_loss(out.stop_logits, mel_lengths, stop_positive_weight),
        "guided": guided_attention_loss(out.alignments, symbol_lengths, steps, guided_sigma),
    }
