"""One step of professor forcing, as a pure function of its inputs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from profforce.config import TrainConfig
from profforce.data.batch import Batch
from profforce.models.discriminator import Discriminator, LengthDiscriminator
from profforce.models.losses import reconstruction_losses
from profforce.models.through_time import ThroughTime, run_through_time
from profforce.models.tts import TeacherForced, TTSModel
from profforce.nn.noise import PrenetNoise
from profforce.training.adversary import behaviours, fooling, judging
from profforce.training.gates import ForcingWeights
from profforce.training.imitation import attention_loss, imitation_loss
from profforce.training.inputs import disturbed
from profforce.training.passes import in_precision, teacher_forced
from profforce.training.pool import PoolBatch
from profforce.training.precision import LossScale
from profforce.training.shares import WHOLE, Shares, weighed


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
    model: TTSModel,
    discriminator: Discriminator,
    control: LengthDiscriminator,
    real: Batch,
    pool: PoolBatch | FreeTexts | None,
    *,
    noise: PrenetNoise,
    weights: ForcingWeights,
    judge_learns: bool,
    crop_generator: torch.Generator,
    config: TrainConfig,
    shares: Shares = WHOLE,
) -> Iterator[StepLoss]:
    """Losses of a real batch and, with a pool, of professor forcing.

    The batch model runs teacher-forced once on the real frames and once on frames it made itself.
    Of the second pass it learns from an expert what to say next (:mod:`.imitation`), from a
    discriminator to behave as on the real frames (:mod:`.adversary`). The losses come one after the
    other, so that the graph of one pass is gone before the next is built: the memory is that of one
    pass. (Only C_t > 0 needs both at once.)

    Args:
        model: in training mode.
        discriminator: sees behaviour in equal-length crops.
        control: sees where the crops are not zero; accuracy above chance means a leak.
        real: texts and recordings.
        pool: texts and self-made mels, texts to speak now, or None for plain teacher forcing.
        noise: the prenet's noise of the real pass.
        weights: of the terms; with all at 0 the pool pass needs no gradient.
        judge_learns: discriminator and control get a loss, not only a reading.
        crop_generator: draws the crops.
        config: loss weights and discriminator settings.
        shares: of the batches in the optimizer step; losses and scalars of all of them add up.
    """
    real_pass = teacher_forced(model, disturbed(model, real, noise, config.trainer), noise)
    loss, scalars = _reconstruction(model, real_pass, real, config, shares)
    if pool is None or weights.teacher == 0:
        yield StepLoss(loss, scalars)
        loss, scalars = loss.new_zeros(()), {}
    if pool is None:
        return

    learns = weights.judged or weights.imitates
    with torch.set_grad_enabled(learns):
        free_pass, free_lengths = _free_running(model, pool, config, scalars, shares)
    if weights.imitates and isinstance(pool, PoolBatch):
        term, readings = _imitation(model, free_pass, pool, weights, config, shares)
        loss, scalars = loss + term, scalars | readings
    if config.method.judged:
        seen = behaviours(
            model,
            (real_pass, real.mel_lengths),
            (free_pass, free_lengths),
            crop_generator,
            config.discriminator,
        )
        if weights.judged:
            fooled = fooling(discriminator, seen, weights, config.discriminator)
            term, readings = weighed(*fooled, shares.pairs)
            loss, scalars = loss + term, scalars | readings
    if learns:
        yield StepLoss(loss, scalars)
        scalars = {}
    if config.method.judged:
        judged = judging(discriminator, control, seen, config.discriminator, learns=judge_learns)
        told, readings = weighed(*judged, shares.pairs)
        yield StepLoss(told, scalars | readings)


def differentiate(losses: Iterable[StepLoss], scale: LossScale | None = None) -> dict[str, Tensor]:
    """Add the gradients of one batch, times ``scale``; returns the scalars of all its losses."""
    scalars: dict[str, Tensor] = {}
    for loss in losses:
        if loss.value is not None:
            (loss.value if scale is None else scale.times(loss.value)).backward()
        scalars |= loss.scalars
    return scalars


def _free_running(
    model: TTSModel,
    pool: PoolBatch | FreeTexts,
    config: TrainConfig,
    scalars: dict[str, Tensor],
    shares: Shares,
) -> tuple[TeacherForced | ThroughTime, Tensor]:
    """The model's behaviour on frames of its own, and their lengths ``[B]``.

    A free run made here is described in ``scalars``.
    """
    batch = pool.batch
    if isinstance(pool, PoolBatch):
        return teacher_forced(model, batch, pool.noise, refine=False), batch.mel_lengths
    with in_precision(model):
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
    ratio = run.lengths.sum() / batch.mel_lengths.sum()
    scalars["free/stopped_fraction"] = run.stopped.float().mean() * shares.free_texts
    scalars["free/length_ratio"] = ratio * shares.free_frames
    return run, run.lengths


def _reconstruction(
    model: TTSModel, out: TeacherForced, batch: Batch, config: TrainConfig, shares: Shares
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
    terms = {
        name: term * (shares.cells if name == "guided" else shares.frames)
        for name, term in terms.items()
    }
    loss = (
        terms["mel"]
        + terms["mel_before"]
        + trainer.stop_weight * terms["stop"]
        + trainer.guided_weight * terms["guided"]
    )
    scalars = {f"loss/{name}": value.detach() for name, value in terms.items()}
    return loss, {"loss/total": loss.detach(), **scalars}


def _imitation(
    model: TTSModel,
    out: TeacherForced | ThroughTime,
    pool: PoolBatch,
    weights: ForcingWeights,
    config: TrainConfig,
    shares: Shares,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The expert's weighted loss, and its terms."""
    assert isinstance(out, TeacherForced) and pool.expert is not None
    made_lengths, expert = pool.batch.mel_lengths, pool.expert
    terms = imitation_loss(
        model,
        out,
        made_lengths,
        expert,
        stop_weight=config.trainer.stop_weight,
        stop_positive_weight=config.trainer.stop_positive_weight,
    )
    terms = {name: term * shares.free_frames for name, term in terms.items()}
    loss = weights.imitation * terms.pop("total")
    if weights.attention > 0:
        with torch.no_grad():
            recorded = teacher_forced(model, expert.real, pool.noise, refine=False)
        factor = model.config.reduction_factor
        attended = attention_loss(out, recorded, made_lengths, expert, factor)
        terms["attention"] = attended * shares.free_steps
        loss = loss + weights.attention * terms["attention"]
    return loss, {f"imitation/{name}": value.detach() for name, value in terms.items()}
