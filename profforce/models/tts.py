"""What training and sampling ask of a model, whatever its network.

Shapes: B batch, S symbols, T mel frames, R reduction factor, U = ceil(T / R) decoder steps,
M mel channels, D width of the hidden states, G guided heads. Mels are natural-log amplitudes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.config import ModelConfig
from profforce.models.mirror_state import MirrorState, StepOutput
from profforce.models.segmented_postnet import refine_in_segments
from profforce.models.segments import Decoded
from profforce.nn.attention import Memory
from profforce.nn.convolution import ConvStack
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.nn.prenet import Prenet


@dataclass(frozen=True)
class TeacherForced:
    """One parallel pass over given targets. Padding is exactly zero everywhere."""

    mel: Tensor
    """``[B, T, M]``, after the postnet."""
    mel_before: Tensor
    """``[B, T, M]``, before the postnet: what the recurrent form feeds back."""
    stop_logits: Tensor
    """``[B, T]``, one a frame; positive on the last frame and after."""
    hidden: Tensor
    """``[B, U, D]``, the decoder's last hidden states: its behaviour."""
    alignments: Tensor
    """``[B, G, U, S]``, cross-attention of the guided heads."""


class TTSModel(nn.Module):
    """Interface of an autoregressive model of mel frames; what all of them do alike is here.

    A network gives :meth:`encode` and :meth:`decode`, the layers named below, and :meth:`start`
    and :meth:`step`, its recurrent view, which :class:`Mirror` runs.
    """

    mel_mean: Tensor
    mel_std: Tensor
    prenet: Prenet
    mel_out: nn.Linear
    """From hidden states to R frames."""
    stop_out: nn.Linear
    """From hidden states to R stop logits."""
    postnet: ConvStack

    def __init__(self, config: ModelConfig, num_mels: int) -> None:
        super().__init__()
        self.config = config
        self.num_mels = num_mels
        self.recompute_activations = False
        """Keep only the inputs of each block and compute the rest anew in the backward pass."""
        self.autocast: torch.dtype | None = None
        """Type of the matrix products of :meth:`forward` in training mode."""
        self.segment_steps: int | None = None
        """Run decoder and postnet in parts of so many decoder steps, of which the backward pass
        needs nothing but inputs and outputs; ``recompute_activations`` is then the encoder's."""
        self.register_buffer("mel_mean", torch.zeros(num_mels))
        self.register_buffer("mel_std", torch.ones(num_mels))

    def encode(
        self, symbols: Tensor, symbol_lengths: Tensor, speakers: Tensor | None = None
    ) -> list[Memory]:
        """Encode ``symbols [B, S]`` into what each attending decoder layer attends to."""
        raise NotImplementedError

    def decode(
        self, inputs: Tensor, lengths: Tensor, memories: list[Memory], noise: PrenetNoise | None
    ) -> Decoded:
        """The decoder over given frames.

        Args:
            inputs: ``[B, U, R * M]``, as of :meth:`decoder_inputs`.
            lengths: ``[B]``, valid steps.
            memories: of :meth:`encode`.
            noise: the prenet's.
        """
        raise NotImplementedError

    def start(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_steps: int,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
    ) -> MirrorState:
        """The recurrent view's state before its first step, without gradients.

        Called in evaluation mode and under ``no_grad`` (the mirror sees to it), as is :meth:`step`.

        Args:
            symbols: ``[B, S]`` int64.
            symbol_lengths: ``[B]`` int64.
            max_steps: what the state has to have room for.
            noise: key of the prenet's dropout; None switches it off.
            speakers: ``[B]`` int64; speaker 0 when not given.
        """
        raise NotImplementedError

    def step(self, state: MirrorState) -> tuple[StepOutput, MirrorState]:
        """One decoder step on the state's own last frames; may update the layers' state in place.

        The frames are those of :meth:`forward` in evaluation mode, one by one.
        """
        raise NotImplementedError

    def values_held(self, num_symbols: Tensor, num_steps: Tensor) -> Tensor:
        """How many values a free run holds for each utterance beside its results.

        Args:
            num_symbols: ``[B]``
            num_steps: ``[B]`` float64, the most that it may take.

        Returns:
            ``[B]`` float64.
        """
        raise NotImplementedError

    def set_mel_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Mean and deviation a channel ``[M]`` of the training mels; kept in the checkpoint."""
        self.mel_mean.copy_(mean)
        self.mel_std.copy_(std.clamp(min=1e-3))

    def normalize(self, mel: Tensor) -> Tensor:
        """Natural-log mel ``[..., M]`` to zero mean and unit deviation a channel."""
        return (mel - self.mel_mean) / self.mel_std

    def denormalize(self, mel: Tensor) -> Tensor:
        """The inverse of :meth:`normalize`."""
        return mel * self.mel_std + self.mel_mean

    def decoder_inputs(self, mel: Tensor) -> Tensor:
        """Shifted targets: ``mel [B, T, M]`` -> normalised groups ``[B, U, R * M]``.

        The first step sees zeros; step ``u`` sees the R frames of step ``u - 1``. Frames that pad
        T to a whole number of groups are never an input.
        """
        frames = self.config.reduction_factor
        x = self.normalize(mel)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % frames)).unflatten(1, (-1, frames)).flatten(2)
        return F.pad(x, (0, 0, 1, 0))[:, :-1]

    def forward(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        mel: Tensor,
        mel_lengths: Tensor,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
        refine: bool = True,
    ) -> TeacherForced:
        """Predict every frame of ``mel [B, T, M]`` from the frames before it.

        Args:
            symbols: ``[B, S]`` int64.
            symbol_lengths: ``[B]`` int64.
            mel: targets, natural-log amplitude; frames beyond ``mel_lengths`` do not matter.
            mel_lengths: ``[B]`` int64, frames.
            noise: key of the prenet's dropout; None switches it off.
            speakers: ``[B]`` int64; speaker 0 when not given.
            refine: False leaves the postnet out, for those who look at hidden states and
                ``mel_before`` only; ``mel`` is then the same as ``mel_before``.
        """
        valid = length_mask(mel_lengths, mel.shape[1])[..., None]
        mel = mel.masked_fill(~valid, 0)  # not multiplied: what pads may be anything, NaN too
        memories = self.encode(symbols, symbol_lengths, speakers)
        lengths = -(-mel_lengths // self.config.reduction_factor)
        decoded = self.decode(self.decoder_inputs(mel), lengths, memories, noise)
        return self._finish(decoded, mel_lengths, mel.shape[1], refine)

    def _finish(
        self, decoded: Decoded, mel_lengths: Tensor, num_frames: int, refine: bool
    ) -> TeacherForced:
        before, stop, hidden, alignments = decoded
        before, stop = before[:, :num_frames], stop[:, :num_frames]
        mask = length_mask(mel_lengths, num_frames)
        if not refine:
            after = before
        elif self.segment_steps is None:
            after = self.refine(before, mask)
        else:
            after = refine_in_segments(self, before, mask, self.segment_steps)
        return TeacherForced(
            mel=self.denormalize(after) * mask[..., None],
            mel_before=self.denormalize(before) * mask[..., None],
            stop_logits=stop * mask,
            hidden=hidden,
            alignments=alignments,
        )

    def frames(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``hidden [B, U, D]`` -> normalised ``[B, U * R, M]``, stop logits ``[B, U * R]``."""
        mel = self.mel_out(hidden).unflatten(-1, (-1, self.num_mels)).flatten(1, 2)
        return mel, self.stop_out(hidden).flatten(1)

    def refine(self, before: Tensor, mask: Tensor) -> Tensor:
        """Add the postnet's residual to normalised frames ``[B, T, M]``."""
        if not self.postnet.convs:
            return before
        return before + self.postnet(before, mask)  # type: ignore[no-any-return]


def build_postnet(config: ModelConfig, num_mels: int) -> ConvStack:
    """Convolutions over frames; none for ``postnet_layers=0``."""
    inner = [config.postnet_width] * (config.postnet_layers - 1)
    return ConvStack(
        [num_mels, *inner, num_mels] if config.postnet_layers else [num_mels],
        config.postnet_kernel,
        dropout=config.dropout,
        tanh=True,
        linear_last=True,
    )


def encoder_convolutions(config: ModelConfig) -> ConvStack:
    """Convolutions over embedded symbols; none for ``encoder_conv_layers=0``."""
    return ConvStack(
        [config.width] * (config.encoder_conv_layers + 1),
        config.encoder_conv_kernel,
        dropout=config.dropout,
    )
