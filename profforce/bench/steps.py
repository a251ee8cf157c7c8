"""Optimizer steps of a training, taken one by one: what the suites ``train`` and ``epoch`` time.

Models, optimizers, pool and mirror are those of a run (:class:`TrainState`); what a run does
between its steps (logs, readings, checkpoints) is left out.

Shapes: B batch, T mel frames, S symbols, U decoder steps.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch

from profforce.config import (
    BenchConfig,
    BenchDtype,
    MethodConfig,
    TrainConfig,
    TrainingBenchConfig,
)
from profforce.data.batch import Batch, collate
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.models.build import build_model
from profforce.models.segments import check_segments
from profforce.models.through_time import check_through_time
from profforce.nn.noise import PrenetNoise
from profforce.training.gates import Gates
from profforce.training.optim import clip_gradients
from profforce.training.pool import PoolBatch, SamplePool
from profforce.training.recital import Recital
from profforce.training.shares import WHOLE, divided
from profforce.training.state import TrainState
from profforce.training.step import FreeTexts, differentiate, professor_forcing_step

SEGMENT_STEPS, RECOMPUTE_STEPS = 16, 8
"""Where ``trainer.segment_steps`` and ``method.recompute_steps`` are not set."""
JUDGED_WEIGHT = 0.05
"""C_f where the run has no discriminator."""
NEVER_STOP = 0.999999
"""Stop threshold that an untrained model does not reach, so that free runs have given lengths."""


def training_of(config: BenchConfig) -> TrainingBenchConfig:
    """The settings with those of a training.

    Raises:
        UserError: if there are none, or for a type that training does not use.
    """
    if not isinstance(config, TrainingBenchConfig):
        raise UserError(
            f"suite {config.suite} times a training and was given no settings of one",
            expected="a TrainingBenchConfig",
        )
    if config.dtype is not BenchDtype.float32:
        raise UserError(
            "training runs in float32",
            where="dtype",
            got=config.dtype.value,
            remedy="leave dtype out",
        )
    return config


class Free(Enum):
    """Where free-running behaviour comes from."""

    none = "none"
    """Teacher forcing."""
    pool = "pool"
    """Utterances that were generated earlier."""
    within = "within"
    """A free run within the step, with gradients through time."""


@dataclass(frozen=True)
class StepKind:
    """One way to take a step."""

    free: Free
    """On which self-made utterances it trains beside the recordings."""
    judged: bool = False
    """By a discriminator alone, whatever the run's method is."""
    gate_open: bool = True
    """Its gradient reaches the model."""
    recompute: bool = False
    """``trainer.recompute_activations``, and ``method.recompute_steps`` through time."""
    segments: bool = False
    """``trainer.segment_steps``"""

    def method_of(self, method: MethodConfig) -> MethodConfig:
        """That of a run as this step takes it."""
        if not self.judged:
            return method
        weight = method.weight or JUDGED_WEIGHT
        return replace(method, weight=weight, imitation_weight=0.0, attention_weight=0.0)


def problem_with(kind: StepKind, config: TrainConfig, device: torch.device) -> str | None:
    """Why this model cannot take such a step; None if it can."""
    with torch.device("meta"):
        model = build_model(config.model, 1, config.mel.num_mels)
    try:
        if kind.segments:
            check_segments(model, device)
        if kind.free is Free.within:
            check_through_time(model)
    except UserError as error:
        return str(error)
    return None


class TrainingSteps:
    """A training at its start, whose steps can be taken in any way and order."""

    def __init__(self, config: TrainConfig, corpus: Corpus, device: torch.device) -> None:
        freerun = replace(config.freerun, max_length_ratio=1.0, stop_threshold=NEVER_STOP)
        speakers = config.model.num_speakers or len(corpus.speakers) * (len(corpus.speakers) > 1)
        model = replace(config.model, num_speakers=speakers)
        self.config = replace(config, freerun=freerun, model=model)
        self.corpus, self.device = corpus, device
        self.state = TrainState(self.config, corpus, device)
        self.state.model.train()
        self.crops = torch.Generator().manual_seed(config.seed)

    @property
    def pool_batch_size(self) -> int:
        """Generated utterances a step."""
        return self.config.pool_batch_size

    @property
    def segment_steps(self) -> int:
        """Decoder steps of a segment, for the forms that run in segments."""
        return self.config.trainer.segment_steps or SEGMENT_STEPS

    def batch(self, positions: Sequence[int]) -> Batch:
        """Utterances of the corpus."""
        return collate([self.corpus.train[i] for i in positions]).to(self.device)

    def generate(self, pool_size: int) -> SamplePool:
        """A pool of ``pool_size`` utterances, as the settings of the run make it."""
        config = replace(self.config.freerun, pool_size=pool_size)
        imitates = self.config.method.imitates
        gap = self.corpus.tokenizer.gap
        train, seed = self.corpus.train, self.config.seed
        pool = SamplePool(Recital(config, train, seed, gap=gap, imitates=imitates))
        pool.refresh(self.state.mirror, 0, self.device)
        return pool

    def take(self, kind: StepKind, real: Batch, made: PoolBatch | FreeTexts | None) -> None:
        """One optimizer step as the loop takes it, discriminator and averaged weights included.

        Args:
            kind: how.
            real: recordings.
            made: generated utterances, or texts to speak; None for teacher forcing.
        """
        state, method = self.state, kind.method_of(self.config.method)
        if kind.recompute:
            every = method.recompute_steps or RECOMPUTE_STEPS
            method = replace(method, recompute_steps=every)
        config = replace(self.config, method=method)
        weights = Gates(method, float(kind.gate_open)).weights(sys.maxsize)
        state.model.recompute_activations = kind.recompute
        state.model.segment_steps = self.segment_steps if kind.segments else None
        share, *_ = divided([WHOLE] * config.trainer.accumulate)
        for _ in range(config.trainer.accumulate):
            losses = professor_forcing_step(
                state.model,
                state.discriminator,
                state.control,
                real,
                made,
                noise=PrenetNoise(config.seed, real.indices),
                weights=weights,
                judge_learns=True,
                crop_generator=self.crops,
                config=config,
                shares=share,
            )
            differentiate(losses)
        clip_gradients(state.model, config.trainer.clip_norm)
        state.optimizer.step()
        state.optimizer.zero_grad()
        if made is not None:
            state.judge_optimizer.step()
            state.judge_optimizer.zero_grad()
        if state.average is not None:
            state.average.update_parameters(state.model)
