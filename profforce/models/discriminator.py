"""Discriminators: is this teacher-forced pass over real or over self-generated frames?

They see the *behaviour* of the model over time: hidden states and outputs (Lamb et al. 2016,
arXiv:1610.09038, section 2.2), in crops that are equally long in both halves.

Shapes: B batch, U decoder steps, C features, R reduction factor, M mel channels, D model width.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from profforce.config import DiscriminatorConfig, DiscriminatorKind, GanLoss, ModelConfig
from profforce.nn.masks import length_mask, masked_mean

LOGIT_LIMIT = 10.0
"""Logits are clipped to this range, as in the paper authors' code."""


class Discriminator(nn.Module):
    """Maps behaviour ``[B, U, C]`` with ``lengths [B]`` to logits ``[B]``; positive means real."""

    def forward(self, behaviour: Tensor, lengths: Tensor) -> Tensor:
        """``behaviour [B, U, C]``, ``lengths [B]`` (each >= 1) -> logits ``[B]``."""
        raise NotImplementedError


class GruDiscriminator(Discriminator):
    """Bidirectional GRU, mean over time, three dense layers (as the paper's)."""

    def __init__(self, config: DiscriminatorConfig, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.into = nn.Linear(channels, config.width)
        self.gru = nn.GRU(
            config.width,
            config.width,
            config.num_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.num_layers > 1 else 0.0,
        )
        self.head = _head(2 * config.width, config.width, config.dropout)

    def forward(self, behaviour: Tensor, lengths: Tensor) -> Tensor:
        """See :class:`Discriminator`."""
        x = F.leaky_relu(self.into(self.norm(behaviour)), 0.2)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])
        mask = length_mask(lengths, x.shape[1])[..., None].to(y.dtype)
        mean = (y * mask).sum(1) / lengths[:, None].to(y.dtype)
        return _clip(self.head(mean)[:, 0])


class ConvDiscriminator(Discriminator):
    """Dilated convolutions over time, one logit a step, mean over the valid steps."""

    def __init__(self, config: DiscriminatorConfig, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        widths = [channels, *[config.width] * (config.num_layers + 1)]
        self.convs = nn.ModuleList(
            nn.Conv1d(a, b, 3, padding=2**i, dilation=2**i)
            for i, (a, b) in enumerate(pairwise(widths))
        )
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, 1)

    def forward(self, behaviour: Tensor, lengths: Tensor) -> Tensor:
        """See :class:`Discriminator`."""
        mask = length_mask(lengths, behaviour.shape[1])[..., None].to(behaviour.dtype)
        x = self.norm(behaviour)
        for conv in self.convs:
            x = F.leaky_relu(conv((x * mask).transpose(1, 2)).transpose(1, 2), 0.2)
            x = self.dropout(x)
        mean = (self.head(x) * mask).sum(1)[:, 0] / lengths.to(x.dtype)
        return _clip(mean)


class LengthDiscriminator(nn.Module):
    """Control that sees only where a crop is not zero: above chance, length or padding leaks."""

    def __init__(self, crop_steps: int) -> None:
        super().__init__()
        self.scale = float(crop_steps)
        self.head = _head(2, 16, 0.0)

    def forward(self, behaviour: Tensor) -> Tensor:
        """``behaviour [B, L, C]`` -> logits ``[B]``, from the number of steps that are not 0."""
        visible = (behaviour != 0).any(-1).sum(1).to(torch.float32) / self.scale
        return _clip(self.head(torch.stack([visible, visible.square()], -1))[:, 0])


def build_discriminator(
    config: DiscriminatorConfig, model: ModelConfig, num_mels: int
) -> Discriminator:
    """The discriminator for the behaviour of a model of these sizes."""
    channels = model.width * config.use_hidden
    channels += model.reduction_factor * num_mels * config.use_outputs
    kinds: dict[DiscriminatorKind, type[GruDiscriminator] | type[ConvDiscriminator]] = {
        DiscriminatorKind.gru: GruDiscriminator,
        DiscriminatorKind.conv: ConvDiscriminator,
    }
    return kinds[config.kind](config, channels)


def behaviour(
    hidden: Tensor, outputs: Tensor, config: DiscriminatorConfig, reduction_factor: int
) -> Tensor:
    """Join what the discriminator sees.

    Args:
        hidden: ``[B, U, D]``.
        outputs: ``[B, T, M]``, normalised mel before the postnet.
        config: chooses the parts.
        reduction_factor: R.

    Returns:
        ``[B, U, C]``; the R frames of a decoder step side by side.
    """
    parts = [hidden] if config.use_hidden else []
    if config.use_outputs:
        pad = hidden.shape[1] * reduction_factor - outputs.shape[1]
        frames = F.pad(outputs, (0, 0, 0, pad))
        parts.append(frames.unflatten(1, (-1, reduction_factor)).flatten(2))
    return torch.cat(parts, -1)


def gan_loss(logits: Tensor, real: bool, kind: GanLoss) -> Tensor:
    """Loss of ``logits [B]`` that should say ``real``: cross-entropy, or least squares."""
    target = torch.full_like(logits, float(real))
    if kind == GanLoss.bce:
        return F.binary_cross_entropy_with_logits(logits, target)
    return F.mse_loss(logits.sigmoid(), target)


def accuracy(real_logits: Tensor, generated_logits: Tensor) -> Tensor:
    """Share of rightly told behaviours; a logit of exactly 0 counts half."""
    right = (real_logits.sign() - generated_logits.sign()) / 2
    return masked_mean((right + 1) / 2, torch.ones_like(right, dtype=torch.bool))


def _head(inputs: int, width: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, 1),
    )


def _clip(logits: Tensor) -> Tensor:
    return logits.clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
