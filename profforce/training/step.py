"""One step of professor forcing, as a pure function of its inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profforce.config import TrainConfig
from profforce.data.batch import Batch
from profforce.models.discriminator import (
    Discriminator,
    LengthDiscriminator,
    accuracy,
    behaviour,
    gan_loss,
)
from profforce.models.losses import reconstruction_losses
from profforce.models.transformer import TeacherForced, TransformerTTS
from profforce.nn.noise import PrenetNoise
from profforce.training.crops import paired_crops
from profforce.training.pool import PoolBatch


@dataclass(frozen=True)
class StepLosses:
    """What one batch gives: two losses to differentiate and scalars to log."""

    model: Tensor
    discriminator: Tensor | None
    """None without a pool."""
    scalars: dict[str, Tensor]
    """Detached values under their TensorBoard names."""


def professor_forcing_step(
    model: TransformerTTS,
    discriminator: Discriminator,
    control: LengthDiscriminator,
    real: Batch,
    pool: PoolBatch | None,
    *,
    noise: PrenetNoise,
    weights: tuple[float, float],
    crop_generator: torch.Generator,
    config: TrainConfig,
) -> StepLosses:
    """Losses of a real batch and, with a pool, of professor forcing (arXiv:1610.09038, eq. 2-4).

    The batch model runs teacher-forced once on the real frames and once on frames it made itself;
    the discriminator tells the two behaviours apart and the model learns to make them alike.

    Args:
        model: in training mode.
        discriminator: sees hidden states and outputs in equal-length crops.
        control: sees where the crops are not zero; accuracy above chance means a leak.
        real: texts and recordings.
        pool: texts and self-made mels, or None for plain teacher forcing.
        noise: the prenet's noise of the real pass.
        weights: (C_f, C_t); with both at 0 the pool pass needs no gradient.
        crop_generator: draws the crops.
        config: loss weights and discriminator settings.
    """
    real_pass = teacher_forced(model, real, noise)
    loss, scalars = _reconstruction(model, real_pass, real, config)
    if pool is None:
        return StepLosses(loss, None, scalars)

    to_free, to_teacher = weights
    with torch.set_grad_enabled(to_free > 0):
        pool_pass = teacher_forced(model, pool.batch, pool.noise, refine=False)
    behaved, generated, lengths = _crops(
        model, real_pass, real, pool_pass, pool.batch, crop_generator, config
    )
    kind = config.discriminator.loss
    if to_free > 0 or to_teacher > 0:
        with frozen(discriminator):
            fooled = gan_loss(discriminator(generated, lengths), True, kind)
            loss = loss + to_free * fooled
            scalars["gan/free_running"] = fooled.detach()
            if to_teacher > 0:
                alike = gan_loss(discriminator(behaved, lengths), False, kind)
                loss = loss + to_teacher * alike
                scalars["gan/teacher_forced"] = alike.detach()

    # both halves in one batch: half the calls of a small recurrent network
    both = torch.cat([behaved, generated]).detach()
    real_logits, pool_logits = discriminator(both, lengths.repeat(2)).chunk(2)
    told = gan_loss(real_logits, True, kind) + gan_loss(pool_logits, False, kind)
    real_length, pool_length = control(both).chunk(2)
    controlled = gan_loss(real_length, True, kind) + gan_loss(pool_length, False, kind)
    scalars["gan/discriminator"] = told.detach()
    scalars["gan/accuracy"] = accuracy(real_logits, pool_logits).detach()
    scalars["gan/length_only_accuracy"] = accuracy(real_length, pool_length).detach()
    return StepLosses(loss, told + controlled, scalars)


def teacher_forced(
    model: TransformerTTS, batch: Batch, noise: PrenetNoise, *, refine: bool = True
) -> TeacherForced:
    """The parallel pass of ``model`` over a batch's own mels, with or without the postnet."""
    out: TeacherForced = model(
        batch.symbols,
        batch.symbol_lengths,
        batch.mel,
        batch.mel_lengths,
        noise=noise,
        speakers=batch.speakers,
        refine=refine,
    )
    return out


def _reconstruction(
    model: TransformerTTS, out: TeacherForced, batch: Batch, config: TrainConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    trainer = config.trainer
    terms = reconstruction_losses(
        model,
        out,
        mel=batch.mel,
        mel_lengths=batch.mel_lengths,
        symbol_lengths=batch.symbol_lengths,
        stop_positive_weight=trainer.stop_positive_weight,
        guided_sigma=trainer.guided_sigma,
    )
    loss = (
        terms["mel"]
        + terms["mel_before"]
        + trainer.stop_weight * terms["stop"]
        + trainer.guided_weight * terms["guided"]
    )
    scalars = {f"loss/{name}": value.detach() for name, value in terms.items()}
    return loss, {"loss/total": loss.detach(), **scalars}


def _crops(
    model: TransformerTTS,
    real_pass: TeacherForced,
    real: Batch,
    pool_pass: TeacherForced,
    pool: Batch,
    generator: torch.Generator,
    config: TrainConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Behaviours of both passes in equal crops; the larger batch gives as many as the smaller."""
    frames = model.config.reduction_factor
    pairs = min(len(real.mel), len(pool.mel))

    def seen(out: TeacherForced) -> Tensor:
        outputs = model.normalize(out.mel_before[:pairs])
        return behaviour(out.hidden[:pairs], outputs, config.discriminator, frames)

    return paired_crops(
        seen(real_pass),
        seen(pool_pass),
        -(-real.mel_lengths[:pairs] // frames),
        -(-pool.mel_lengths[:pairs] // frames),
        config.discriminator.crop_steps,
        generator,
    )


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
