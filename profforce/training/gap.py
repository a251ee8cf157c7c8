"""The gap meter: how far free-running is from teacher-forced on fixed held-out sentences.

Shapes: B batch, T mel frames, M mel channels, U decoder steps, S symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from profforce.config import FreerunConfig
from profforce.data.batch import Batch, collate
from profforce.data.dataset import MelDataset
from profforce.models.free_run import FreeRun
from profforce.models.metrics import (
    alignment_coverage,
    dtw_mel_distance,
    mean_alignment,
    mean_or_nan,
)
from profforce.models.mirror import Mirror
from profforce.models.tts import TeacherForced, TTSModel
from profforce.nn.modes import evaluating
from profforce.nn.noise import PrenetNoise
from profforce.training.passes import teacher_forced

NOISE_SEED = 20160
"""The meter's own prenet noise: the same at every step, so that readings compare."""


@dataclass(frozen=True)
class Score:
    """How good a checkpoint is."""

    value: float
    """Lower is better; NaN if it cannot be told."""
    figures: dict[str, float]
    """For the records."""


Scorer = Callable[[TTSModel], Score]
"""Scores a model by itself; the same model gets the same score."""


@dataclass(frozen=True)
class Reading:
    """Both passes over the same sentences, and what they say."""

    batch: Batch
    teacher_forced: TeacherForced
    free_running: FreeRun
    scalars: dict[str, float]
    """Under ``gap/``."""

    @property
    def score(self) -> float:
        """Free-running DTW mel distance plus the share that never stopped; lower is better."""
        return self.scalars["gap/free_running_dtw"] + 1 - self.scalars["gap/stopped_fraction"]


def fixed_sentences(dataset: MelDataset, count: int) -> Batch:
    """``count`` held-out utterances spread over their lengths, the same at every call."""
    order = sorted(range(len(dataset)), key=lambda i: (int(dataset.num_frames[i]), i))
    count = min(count, len(order))
    places = [round((i + 0.5) * len(order) / count - 0.5) for i in range(count)]
    return collate([dataset[order[place]] for place in places])


@torch.no_grad()
def read_along(model: TTSModel, batch: Batch) -> TeacherForced:
    """The teacher-forced pass of ``model`` over ``batch``, with the meter's noise."""
    with evaluating(model):
        return teacher_forced(model, batch, _noise(batch))


@torch.no_grad()
def measure_gap(model: TTSModel, batch: Batch, config: FreerunConfig) -> Reading:
    """Run ``model`` teacher-forced and free-running on ``batch`` and compare both to the truth."""
    forced = read_along(model, batch)
    free = Mirror(model).free_run(
        batch.symbols,
        batch.symbol_lengths,
        (batch.mel_lengths * max(config.max_length_ratio, 2.0)).ceil().long(),
        noise=_noise(batch),
        speakers=batch.speakers,
        stop_threshold=config.stop_threshold,
    )
    return Reading(batch, forced, free, _scalars(batch, forced, free, model))


def _noise(batch: Batch) -> PrenetNoise:
    return PrenetNoise(NOISE_SEED, torch.arange(len(batch), device=batch.mel.device))


def alignment_of(alignments: Tensor, frames: int, symbols: int, reduction_factor: int) -> Tensor:
    """The clearest head's ``[U, S]`` of one utterance, without padding, from ``[G, U, S]``."""
    return mean_alignment(alignments[:, : -(-frames // reduction_factor), :symbols])


def _scalars(
    batch: Batch, forced: TeacherForced, free: FreeRun, model: TTSModel
) -> dict[str, float]:
    factor = model.config.reduction_factor
    rows: dict[str, list[float]] = {
        name: [] for name in ("forced", "free", "stop", "covered_forced", "covered_free")
    }
    for i in range(len(batch)):
        frames, made = int(batch.mel_lengths[i]), int(free.lengths[i])
        symbols = int(batch.symbol_lengths[i])
        real = batch.mel[i, :frames]
        rows["forced"].append(dtw_mel_distance(forced.mel[i, :frames], real))
        rows["free"].append(dtw_mel_distance(free.mel[i, :made], real))
        rows["stop"].append(abs(made - frames))
        for name, source, length in (
            ("covered_forced", forced.alignments, frames),
            ("covered_free", free.alignments, made),
        ):
            alignment = alignment_of(source[i], length, symbols, factor)
            rows[name].append(alignment_coverage(alignment))
    means = {name: mean_or_nan(values) for name, values in rows.items()}
    return {
        "gap/teacher_forced_dtw": means["forced"],
        "gap/free_running_dtw": means["free"],
        "gap/dtw_ratio": means["free"] / max(means["forced"], 1e-9),
        "gap/stop_error_frames": means["stop"],
        "gap/stopped_fraction": float(free.stopped.float().mean()),
        "gap/coverage_teacher_forced": means["covered_forced"],
        "gap/coverage_free_running": means["covered_free"],
    }
