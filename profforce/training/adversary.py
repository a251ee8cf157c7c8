"""The discriminator's part of a step (Lamb et al. 2016, arXiv:1610.09038, equations 2 to 4).

Shapes: B batch of pairs, U decoder steps, L of a crop, C features.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profforce.config import DiscriminatorConfig
from profforce.models.discriminator import (
    Discriminator,
    LengthDiscriminator,
    accuracy,
    behaviour,
    fooling_loss,
    gan_loss,
    gradient_penalty,
    matching_loss,
)
from profforce.models.through_time import ThroughTime
from profforce.models.tts import TeacherForced, TTSModel
from profforce.training.crops import paired_crops
from profforce.training.gates import ForcingWeights


@dataclass(frozen=True)
class Behaviours:
    """Equal crops of what a model does on recorded and on self-made frames."""

    real: Tensor
    """``[B, L, C]``, zero beyond ``lengths``."""
    made: Tensor
    """``[B, L, C]``."""
    lengths: Tensor
    """``[B]``."""


def behaviours(
    model: TTSModel,
    real: tuple[TeacherForced, Tensor],
    made: tuple[TeacherForced | ThroughTime, Tensor],
    generator: torch.Generator,
    config: DiscriminatorConfig,
) -> Behaviours:
    """Crops of two passes, each with its ``[B]`` frames; the larger batch gives as many as the
    smaller."""
    frames = model.config.reduction_factor
    pairs = min(len(real[1]), len(made[1]))

    def seen(out: TeacherForced | ThroughTime) -> Tensor:
        outputs = model.normalize(out.mel_before[:pairs])
        alignments = out.alignments[:pairs] if isinstance(out, TeacherForced) else None
        return behaviour(out.hidden[:pairs], outputs, alignments, config, frames)

    return Behaviours(
        *paired_crops(
            seen(real[0]),
            seen(made[0]),
            -(-real[1][:pairs] // frames),
            -(-made[1][:pairs] // frames),
            config.crop_steps,
            generator,
        )
    )


def fooling(
    judge: Discriminator, seen: Behaviours, weights: ForcingWeights, config: DiscriminatorConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The model's loss and its unweighted terms; ``judge`` gets no gradient."""
    loss, scalars = seen.made.new_zeros(()), {}
    with frozen(judge):
        made = judge(seen.made, seen.lengths)
        fooled = fooling_loss(made.logits, True, config.loss)
        loss = loss + weights.free * fooled
        scalars["gan/free_running"] = fooled.detach()
        if weights.teacher > 0 or weights.matching > 0:
            with torch.set_grad_enabled(weights.teacher > 0):
                real = judge(seen.real, seen.lengths)
        if weights.teacher > 0:
            alike = fooling_loss(real.logits, False, config.loss)
            loss = loss + weights.teacher * alike
            scalars["gan/teacher_forced"] = alike.detach()
        if weights.matching > 0:
            matched = matching_loss(made.features, real.features)
            loss = loss + weights.matching * matched
            scalars["gan/matching"] = matched.detach()
    return loss, scalars


def judging(
    judge: Discriminator,
    control: LengthDiscriminator,
    seen: Behaviours,
    config: DiscriminatorConfig,
    *,
    learns: bool,
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The loss of the discriminator and its control, if they learn, and their readings."""
    kind, lengths = config.loss, seen.lengths
    # both halves in one batch: half the calls of a small recurrent network
    both = torch.cat([seen.real, seen.made]).detach()
    with torch.set_grad_enabled(learns):
        real, made = judge(both, lengths.repeat(2)).split(len(lengths))
        told = gan_loss(real.logits, True, kind) + gan_loss(made.logits, False, kind)
        real_length, made_length = control(both).chunk(2)
        controlled = gan_loss(real_length, True, kind) + gan_loss(made_length, False, kind)
    scalars = {
        "gan/discriminator": told.detach(),
        "gan/accuracy": accuracy(real.logits, made.logits).detach(),
        "gan/length_only_accuracy": accuracy(real_length, made_length).detach(),
    }
    if not learns:
        return None, scalars
    loss = told + controlled
    if config.r1_weight > 0:
        penalty = gradient_penalty(judge, seen.real, lengths)
        loss = loss + config.r1_weight * penalty
        scalars["gan/gradient_penalty"] = penalty.detach()
    return loss, scalars


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Gradients flow through ``module`` but not into its parameters."""
    wanted = [(p, p.requires_grad) for p in module.parameters()]
    for parameter, _ in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
