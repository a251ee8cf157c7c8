"""The batch model: text encoder and autoregressive mel decoder, run in parallel over time.

Shapes: B batch, S symbols, T mel frames, R reduction factor, U = ceil(T / R) decoder steps,
M mel channels, D width, G guided heads. Mels are natural-log amplitudes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from profforce.config import ModelConfig, PositionsKind
from profforce.models.segmented_postnet import refine_in_segments
from profforce.models.segments import Decoded, decode_in_segments
from profforce.nn.attention import Memory
from profforce.nn.blocks import DecoderBlock, EncoderBlock
from profforce.nn.convolution import ConvStack
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.nn.positions import NoPositions, RecentSteps, ScaledPositions
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


class TransformerTTS(nn.Module):
    """Encoder-decoder Transformer for mel frames (Li et al. 2019, arXiv:1809.08895), pre-norm."""

    mel_mean: Tensor
    mel_std: Tensor
    encoder_positions: NoPositions | ScaledPositions
    decoder_positions: NoPositions | ScaledPositions

    def __init__(self, config: ModelConfig, num_symbols: int, num_mels: int) -> None:
        super().__init__()
        self.config = config
        self.num_mels = num_mels
        self.recompute_activations = False
        """Keep only the inputs of each block and compute the rest anew in the backward pass."""
        self.segment_steps: int | None = None
        """Run decoder and postnet in parts of so many decoder steps, of which the backward pass
        needs nothing but inputs and outputs; ``recompute_activations`` is then the encoder's."""
        width, frames = config.width, config.reduction_factor
        self.embedding = nn.Embedding(num_symbols, width)
        self.speaker = nn.Embedding(config.num_speakers, width) if config.num_speakers else None
        self.encoder_conv = ConvStack(
            [width] * (config.encoder_conv_layers + 1),
            config.encoder_conv_kernel,
            dropout=config.dropout,
        )
        relative = config.positions is PositionsKind.relative
        self.encoder_positions = NoPositions() if relative else ScaledPositions()
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.encoder_norm = nn.LayerNorm(width)
        self.prenet = Prenet(
            frames * num_mels, config.prenet_width, config.prenet_layers, config.prenet_dropout
        )
        self.decoder_in = nn.Linear(config.prenet_width, width)
        self.decoder_positions = NoPositions() if relative else ScaledPositions()
        self.recent_steps = RecentSteps(width, config.recent_steps) if relative else None
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.decoder_norm = nn.LayerNorm(width)
        self.mel_out = nn.Linear(width, frames * num_mels)
        self.stop_out = nn.Linear(width, frames)
        inner = [config.postnet_width] * (config.postnet_layers - 1)
        self.postnet = ConvStack(
            [num_mels, *inner, num_mels] if config.postnet_layers else [num_mels],
            config.postnet_kernel,
            dropout=config.dropout,
            tanh=True,
            linear_last=True,
        )
        self.register_buffer("mel_mean", torch.zeros(num_mels))
        self.register_buffer("mel_std", torch.ones(num_mels))

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

    def encode(
        self, symbols: Tensor, symbol_lengths: Tensor, speakers: Tensor | None = None
    ) -> list[Memory]:
        """Encode ``symbols [B, S]`` into one cross-attention memory a decoder layer."""
        mask = length_mask(symbol_lengths, symbols.shape[1])
        x = self.embedding(symbols)
        if self.encoder_conv.convs:
            x = x + self.encoder_conv(x, mask)
        x = self.encoder_positions(x)
        for block in self.encoder:
            x = self._through(block, x, mask)
        x = self.encoder_norm(x)
        if self.speaker is not None:
            who = symbols.new_zeros(len(symbols)) if speakers is None else speakers
            x = x + self.speaker(who)[:, None]
        return [block.cross.memory(x, mask) for block in self.decoder]  # type: ignore[union-attr, operator]

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
        inputs = self.decoder_inputs(mel)
        lengths = -(-mel_lengths // self.config.reduction_factor)
        if self.segment_steps is None:
            decoded = self._decode(inputs, lengths, memories, noise)
        else:
            decoded = decode_in_segments(self, inputs, lengths, memories, noise, self.segment_steps)
        return self._finish(decoded, mel_lengths, mel.shape[1], refine)

    def _decode(
        self, inputs: Tensor, lengths: Tensor, memories: list[Memory], noise: PrenetNoise | None
    ) -> Decoded:
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.decoder_positions(self.decoder_in(self.prenet(inputs, noise, steps)))
        if self.recent_steps is not None:
            x = self.recent_steps(x)
        guided = []
        for block, memory in zip(self.decoder, memories, strict=True):
            x, weights = self._through(block, x, lengths, memory)
            guided.append(weights[:, : self.config.guided_heads])
        return self.heads(x, guided, lengths)

    def heads(self, x: Tensor, guided: list[Tensor], lengths: Tensor) -> Decoded:
        """What follows the decoder's blocks, step by step.

        Args:
            x: ``[B, U, D]``.
            guided: ``[B, guided_heads, U, S]`` of each layer.
            lengths: ``[B]``, valid steps.
        """
        live = length_mask(lengths, x.shape[1])
        hidden = self.decoder_norm(x) * live[..., None]
        alignments = torch.cat(guided[-self.config.guided_layers :], 1)
        return Decoded(*self.frames(hidden), hidden, alignments * live[:, None, :, None])

    def _through(self, block: nn.Module, *inputs: Any) -> Any:
        if self.recompute_activations and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

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
