"""One step of professor forcing, as a pure function of its inputs."""

from collections.abc import Iterable, Iterator
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
from profforce.models.through_time import ThroughTime, run_through_time
from profforce.models.transformer import TeacherForced, TransformerTTS
from profforce.nn.noise import PrenetNoise
from profforce.training.crops import paired_crops
from profforce.training.pool import PoolBatch


@dataclass(frozen=True)
class FreeTexts:
    """Texts for the model to speak within the step, with gradients through time."""

    batch: Batch
    """Of the corpus; its recordings only limit how long the model may speak."""
    noise: PrenetNoise
    """The prenet's noise of the free run."""


@dataclass(frozen=True)
class StepLoss:
    """A part of a step's loss."""

    value: Tensor | None
    """To be differentiated before the next part is asked for; None where nothing is to learn."""
    scalars: dict[str, Tensor]
    """Detached values under their TensorBoard names."""


def professor_forcing_step(
    model: TransformerTTS,
    discriminator: Discriminator,
    control: LengthDiscriminator,
    real: Batch,
    pool: PoolBatch | FreeTexts | None,
    *,
    noise: PrenetNoise,
    weights: tuple[float, float],
    judge_learns: bool,
    crop_generator: torch.Generator,
    config: TrainConfig,
) -> Iterator[StepLoss]:
    """Losses of a real batch and, with a pool, of professor forcing (arXiv:1610.09038, eq. 2-4).

    The batch model runs teacher-forced once on the real frames and once on frames it made itself;
    the discriminator tells the two behaviours apart and the model learns to make them alike. The
    losses come one after the other, so that the graph of one pass is gone before the next is
    built: the memory is that of one pass. (Only C_t > 0 needs both at once.)

    Args:
        model: in training mode.
        discriminator: sees hidden states and outputs in equal-length crops.
        control: sees where the crops are not zero; accuracy above chance means a leak.
        real: texts and recordings.
        pool: texts and self-made mels, texts to speak now, or None for plain teacher forcing.
        noise: the prenet's noise of the real pass.
        weights: (C_f, C_t); with both at 0 the pool pass needs no gradient.
        judge_learns: discriminator and control get a loss, not only a reading.
        crop_generator: draws the crops.
        config: loss weights and discriminator settings.
    """
    to_free, to_teacher = weights
    real_pass = teacher_forced(model, real, noise)
    loss, scalars = _reconstruction(model, real_pass, real, config)
    if pool is None or to_teacher == 0:
        yield StepLoss(loss, scalars)
        loss, scalars = loss.new_zeros(()), {}
    if pool is None:
        return

    with torch.set_grad_enabled(to_free > 0):
        free_pass, free_lengths = _free_running(model, pool, config, scalars)
    behaved, generated, lengths = _crops(
        model, real_pass, real.mel_lengths, free_pass, free_lengths, crop_generator, config
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
        yield StepLoss(loss, scalars)
        scalars = {}

    # both halves in one batch: half the calls of a small recurrent network
    both = torch.cat([behaved, generated]).detach()
    with torch.set_grad_enabled(judge_learns):
        real_logits, pool_logits = discriminator(both, lengths.repeat(2)).chunk(2)
        told = gan_loss(real_logits, True, kind) + gan_loss(pool_logits, False, kind)
        real_length, pool_length = control(both).chunk(2)
        controlled = gan_loss(real_length, True, kind) + gan_loss(pool_length, False, kind)
    scalars["gan/discriminator"] = told.detach()
    scalars["gan/accuracy"] = accuracy(real_logits, pool_logits).detach()
    scalars["gan/length_only_accuracy"] = accuracy(real_length, pool_length).detach()
    yield StepLoss(told + controlled if judge_learns else None, scalars)


def differentiate(losses: Iterable[StepLoss], parts: int = 1) -> dict[str, Tensor]:
    """Add the gradients of one batch out of ``parts``; returns the scalars of all its losses."""
    scalars: dict[str, Tensor] = {}
    for loss in losses:
        if loss.value is not None:
            (loss.value / parts).backward()
        scalars |= loss.scalars
    return scalars


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


def _free_running(
    model: TransformerTTS,
    pool: PoolBatch | FreeTexts,
    config: TrainConfig,
    scalars: dict[str, Tensor],
) -> tuple[TeacherForced | ThroughTime, Tensor]:
    """The model's behaviour on frames of its own, and their lengths ``[B]``.

    A free run made here is described in ``scalars``.
    """
    batch = pool.batch
    if isinstance(pool, PoolBatch):
        return teacher_forced(model, batch, pool.noise, refine=False), batch.mel_lengths
    run = run_through_time(
        model,
        batch.symbols,
        batch.symbol_lengths,
        (batch.mel_lengths * config.freerun.max_length_ratio).ceil().long().clamp(min=1),
        noise=pool.noise,
        speakers=batch.speakers,
        stop_threshold=config.freerun.stop_threshold,
        recompute_steps=config.method.recompute_steps,
    )
    scalars["free/stopped_fraction"] = run.stopped.float().mean()
    scalars["free/length_ratio"] = run.lengths.sum() / batch.mel_lengths.sum()
    return run, run.lengths


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
    real_lengths: Tensor,
    free_pass: TeacherForced | ThroughTime,
    free_lengths: Tensor,
    generator: torch.Generator,
    config: TrainConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Behaviours of both passes in equal crops; the larger batch gives as many as the smaller."""
    frames = model.config.reduction_factor
    pairs = min(len(real_lengths), len(free_lengths))

    def seen(out: TeacherForced | ThroughTime) -> Tensor:
        outputs = model.normalize(out.mel_before[:pairs])
        return behaviour(out.hidden[:pairs], outputs, config.discriminator, frames)

    return paired_crops(
        seen(real_pass),
        seen(free_pass),
        -(-real_lengths[:pairs] // frames),
        -(-free_lengths[:pairs] // frames),
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
