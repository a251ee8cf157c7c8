"""The parallel pass over a batch's mels, as training and evaluation run it."""

import torch

from profforce.data.batch import Batch
from profforce.models.tts import TeacherForced, TTSModel
from profforce.nn.noise import PrenetNoise


def teacher_forced(
    model: TTSModel, batch: Batch, noise: PrenetNoise, *, refine: bool = True
) -> TeacherForced:
    """The parallel pass of ``model`` over a batch's own mels, with or without the postnet."""
    with in_precision(model):
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


def in_precision(model: TTSModel) -> torch.autocast:
    """Matrix products inside run in the type that ``model`` trains in; in float32 for a reading."""
    half = model.autocast if model.training else None
    device = model.mel_mean.device.type
    return torch.autocast(device, dtype=half, enabled=half is not None)
