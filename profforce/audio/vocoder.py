"""Mel to audio: what a vocoder is, and which one a name builds."""

from typing import Protocol

import torch
from torch import Tensor

from profforce.audio.griffin_lim import GriffinLim
from profforce.audio.hifigan import HifiGan
from profforce.audio.vocos import Vocos
from profforce.config import MelConfig, VocoderKind
from profforce.errors import UserError


class VocoderStream(Protocol):
    """Turns one utterance's mel into audio as its frames come."""

    def push(self, mel: Tensor, last: bool) -> Tensor:
        """Audio ``[N]``, N >= 0, that is known with ``mel [n, M]``, n >= 0; the rest if last.

        All of it together is ``T * hop_length`` samples. After the last bit nothing may follow.
        """
        ...


class Vocoder(Protocol):
    """Turns one utterance's mel into audio of exactly ``T * hop_length`` samples."""

    mel: MelConfig

    def __call__(self, mel: Tensor) -> Tensor:
        """Audio ``[T * hop_length]`` of ``mel [T, M]``, natural-log amplitude."""
        ...

    def stream(self) -> VocoderStream:
        """For one utterance, whose frames come bit by bit."""
        ...


def build_vocoder(
    kind: VocoderKind,
    mel: MelConfig,
    *,
    checkpoint: str | None = None,
    iterations: int = 60,
    device: str | torch.device = "cpu",
) -> Vocoder:
    """The vocoder ``kind`` for mels defined by ``mel``.

    ``checkpoint`` is for HiFi-GAN and Vocos, ``iterations`` for Griffin-Lim. Raises
    :class:`UserError` when weights are missing, were trained on another mel definition, or are
    given to Griffin-Lim, which has none.
    """
    if kind is VocoderKind.vocos:
        return Vocos(mel, checkpoint=checkpoint, device=device)
    if kind is VocoderKind.hifigan:
        return HifiGan(mel, checkpoint=checkpoint, device=device)
    if checkpoint:
        raise UserError(
            "griffin_lim takes no weights",
            where="vocoder_checkpoint",
            got=checkpoint,
            remedy="add vocoder=hifigan or vocoder=vocos, or leave it out",
        )
    return GriffinLim(mel, iterations=iterations, device=device)
