"""Frames fed to the decoder in teacher forcing, disturbed: noise and scheduled sampling."""

from dataclasses import replace

import torch

from profforce.config import TrainerConfig
from profforce.data.batch import Batch
from profforce.models.tts import TTSModel
from profforce.nn.noise import PrenetNoise
from profforce.training.passes import teacher_forced


def disturbed(model: TTSModel, batch: Batch, noise: PrenetNoise, trainer: TrainerConfig) -> Batch:
    """``batch`` with the mels to feed, ``[B, T, M]``; the targets stay the caller's.

    Scheduled sampling takes whole decoder steps from a parallel pass over the true frames, without
    gradient (Mihaylova and Martins 2019, arXiv:1906.07651); noise is Gaussian, a channel's in units
    of the deviation of the training mels. Both draw from PyTorch's global generator.
    """
    mel = batch.mel
    if trainer.scheduled_sampling > 0:
        with torch.no_grad():
            predicted = teacher_forced(model, batch, noise, refine=False).mel_before
        factor = model.config.reduction_factor
        steps = -(-mel.shape[1] // factor)
        chosen = torch.rand(len(mel), steps, device=mel.device) < trainer.scheduled_sampling
        frames = chosen.repeat_interleave(factor, 1)[:, : mel.shape[1], None]
        mel = torch.where(frames, predicted, mel)
    if trainer.input_noise > 0:
        mel = mel + trainer.input_noise * model.mel_std * torch.randn_like(mel)
    return batch if mel is batch.mel else replace(batch, mel=mel)
