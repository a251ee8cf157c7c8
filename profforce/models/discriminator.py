"""Discriminators: is this teacher-forced pass over real or over self-generated frames?

They see the *behaviour* of the model over time: hidden states and outputs (Lamb et al. 2016,
arXiv:1610.09038, section 2.2) and how its attention moves, in crops that are equally long in both
halves.

Shapes: B batch, U decoder steps, C features, R reduction factor, M mel channels, D model width.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from profforce.config import DiscriminatorConfig, DiscriminatorKind, GanLoss, ModelConfig
from profforce.nn.masks import length_mask, masked_mean

LOGIT_LIMIT = 10.0
"""Logits are clipped to this range, as in the paper authors' code."""
ALIGNMENT_FEATURES = 3


@dataclass(frozen=True)
class Judgement:
    """What a discriminator says of a batch of behaviours."""

    logits: Tensor
    """``[B]``, clipped; positive means real."""
    features: Tensor
    """``[B, W]``, the mean over time that they are judged by."""

    def split(self, size: int) -> tuple["Judgement", "Judgement"]:
        """The first ``size`` behaviours and the rest."""
        logits, features = self.logits, self.features
        return (
            Judgement(logits[:size], features[:size]),
            Judgement(logits[size:], features[size:]),
        )


class Discriminator(nn.Module):
    """Judges behaviour ``[B, U, C]`` with ``lengths [B]``."""

    def forward(self, behaviour: Tensor, lengths: Tensor) -> Judgement:
        """Judge ``behaviour [B, U, C]`` with ``lengths [B]``, each >= 1."""
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

    def forward(self, behaviour: Tensor, lengths: Tensor) -> Judgement:
        """See :class:`Discriminator`."""
        x = F.leaky_relu(self.into(self.norm(behaviour)), 0.2)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])
        mask = length_mask(lengths, x.shape[1])[..., None].to(y.dtype)
        mean = (y * mask).sum(1) / lengths[:, None].to(y.dtype)
        return Judgement(_clip(self.head(mean)[:, 0]), mean)


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

    def forward(self, behaviour: Tensor, lengths: Tensor) -> Judgement:
        """See :class:`Discriminator`."""
        mask = length_mask(lengths, behaviour.shape[1])[..., None].to(behaviour.dtype)
        x = self.norm(behaviour)
        for conv in self.convs:
            x = F.leaky_relu(conv((x * mask).transpose(1, 2)).transpose(1, 2), 0.2)
            x = self.dropout(x)
        mean = (x * mask).sum(1) / lengths[:, None].to(x.dtype)
        return Judgement(_clip(self.head(mean)[:, 0]), mean)  # linear: of the mean, or the mean of


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
    channels = model.hidden_width * config.use_hidden
    channels += model.reduction_factor * num_mels * config.use_outputs
    channels += ALIGNMENT_FEATURES * config.use_alignments
    kinds: dict[DiscriminatorKind, type[GruDiscriminator] | type[ConvDiscriminator]] = {
        DiscriminatorKind.gru: GruDiscriminator,
        DiscriminatorKind.conv: ConvDiscriminator,
    }
    judge = kinds[config.kind](config, channels)
    if config.spectral_norm:
        for module in list(judge.modules()):
            if isinstance(module, (nn.Linear, nn.Conv1d)):
                spectral_norm(module)
    return judge


def behaviour(
    hidden: Tensor,
    outputs: Tensor,
    alignments: Tensor | None,
    config: DiscriminatorConfig,
    reduction_factor: int,
) -> Tensor:
    """Join what the discriminator sees.

    Args:
        hidden: ``[B, U, D]``.
        outputs: ``[B, T, M]``, normalised mel before the postnet.
        alignments: ``[B, G, U, S]`` of the guided heads; only looked at with ``use_alignments``.
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
    if config.use_alignments:
        assert alignments is not None
        parts.append(alignment_features(alignments))
    return torch.cat(parts, -1)


def alignment_features(alignments: Tensor) -> Tensor:
    """How attention moves, in symbols: nothing of the text, and nothing of its length.

    Args:
        alignments: ``[B, G, U, S]``, each row a distribution (or zero where padded).

    Returns:
        ``[B, U, 3]``, means over the G heads: the advance of the centre since the step before (0 at
        the first), the spread around it (a deviation), and the largest weight.
    """
    places = torch.arange(alignments.shape[-1], device=alignments.device, dtype=alignments.dtype)
    centre = (alignments * places).sum(-1)
    advance = F.pad(centre[..., 1:] - centre[..., :-1], (1, 0))
    away = (places - centre[..., None]).square()
    spread = ((alignments * away).sum(-1) + 1e-6).sqrt()
    features = torch.stack([advance, spread, alignments.amax(-1)], -1).mean(1)
    return features * (alignments.sum((1, 3)) > 0)[..., None]


def gan_loss(logits: Tensor, real: bool, kind: GanLoss) -> Tensor:
    """The discriminator's loss where ``logits [B]`` should say ``real``, a scalar.

    Cross-entropy; least squares on probabilities; or hinge (Lim and Ye 2017, arXiv:1705.02894).
    """
    if kind == GanLoss.hinge:
        return F.relu(1 - logits if real else 1 + logits).mean()
    target = torch.full_like(logits, float(real))
    if kind == GanLoss.bce:
        return F.binary_cross_entropy_with_logits(logits, target)
    return F.mse_loss(logits.sigmoid(), target)


def fooling_loss(logits: Tensor, real: bool, kind: GanLoss) -> Tensor:
    """The model's loss where ``logits [B]`` are to be made to say ``real``, a scalar."""
    if kind == GanLoss.hinge:  # without a margin: no behaviour is ever good enough
        return -logits.mean() if real else logits.mean()
    return gan_loss(logits, real, kind)


def gradient_penalty(judge: Discriminator, behaviour: Tensor, lengths: Tensor) -> Tensor:
    """R1: half the squared gradient of the logits by real behaviour (arXiv:1801.04406, eq. 9).

    Args:
        judge: whose parameters the penalty is for.
        behaviour: ``[B, U, C]``, real.
        lengths: ``[B]``.
    """
    seen = behaviour.detach().requires_grad_()
    with torch.backends.cudnn.flags(enabled=False):  # its recurrent networks have no second order
        logits = judge(seen, lengths).logits
        (gradient,) = torch.autograd.grad(logits.sum(), seen, create_graph=True)
    return gradient.square().sum((1, 2)).mean() / 2


def matching_loss(made: Tensor, real: Tensor) -> Tensor:
    """Feature matching (Salimans et al. 2016, arXiv:1606.03498, section 3.1), a scalar.

    Args:
        made: ``[B1, W]``, the discriminator's features of behaviour on self-made frames.
        real: ``[B2, W]``, those on real frames, of other utterances; gets no gradient.
    """
    return F.mse_loss(made.mean(0), real.detach().mean(0))


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
