"""The parallel pass over a batch's mels, as training and evaluation run it."""

from profforce.data.batch import Batch
from profforce.models.tts import TeacherForced, TTSModel
from profforce.nn.noise import PrenetNoise


def teacher_forced(
    model: TTSModel, batch: Batch, noise: PrenetNoise, *, refine: bool = True
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
