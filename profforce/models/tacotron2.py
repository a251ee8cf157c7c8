"""Tacotron 2 under the same harness: the recurrent model that Transformers are compared with.

Shapes: B batch, S symbols, R reduction factor, U decoder steps, M mel channels, D width,
P prenet width.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from profforce.config import ModelConfig
from profforce.models.mirror_state import MirrorState, StepOutput
from profforce.models.segments import Decoded
from profforce.models.tacotron2_decoder import RecurrentDecoder
from profforce.models.tts import TTSModel, build_postnet, encoder_convolutions
from profforce.nn.attention import Memory
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.nn.prenet import Prenet

RECOMPUTED_STEPS = 16
"""Decoder steps that are computed anew together, with ``recompute_activations``."""


class Tacotron2(TTSModel):
    """LSTM encoder and decoder with location-sensitive attention (Shen et al. 2018).

    arXiv:1712.05884 with the harness's own parts: every LSTM has ``config.width``, R frames a step,
    the prenet's dropout from a counter, and layer norm for batch norm in the convolutions, so that
    an utterance alone equals the same utterance in any batch. ``encoder_layers`` and
    ``decoder_layers`` count LSTMs; the paper has one and two.
    """

    def __init__(self, config: ModelConfig, num_symbols: int, num_mels: int) -> None:
        super().__init__(config, num_mels)
        width, frames = config.width, config.reduction_factor
        self.embedding = nn.Embedding(num_symbols, width)
        self.speaker = nn.Embedding(config.num_speakers, width) if config.num_speakers else None
        self.encoder_conv = encoder_convolutions(config)
        self.encoder = nn.LSTM(
            width,
            width // 2,
            config.encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.encoder_layers > 1 else 0.0,
        )
        self.prenet = Prenet(
            frames * num_mels, config.prenet_width, config.prenet_layers, config.prenet_dropout
        )
        self.decoder = RecurrentDecoder(config)
        self.mel_out = nn.Linear(config.hidden_width, frames * num_mels)
        self.stop_out = nn.Linear(config.hidden_width, frames)
        self.postnet = build_postnet(config, num_mels)

    def encode(
        self, symbols: Tensor, symbol_lengths: Tensor, speakers: Tensor | None = None
    ) -> list[Memory]:
        """Encode ``symbols [B, S]`` into the one memory that the decoder attends to."""
        mask = length_mask(symbol_lengths, symbols.shape[1])
        x = self.encoder_conv(self.embedding(symbols), mask).to(self.mel_mean.dtype)  # if autocast
        with _exact(x):
            x = self._read(x, symbol_lengths)
            if self.speaker is not None:
                who = symbols.new_zeros(len(symbols)) if speakers is None else speakers
                x = x + self.speaker(who)[:, None]
            return [self.decoder.attention.memory(x, mask)]

    def _read(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The bidirectional LSTM over ``x [B, S, D]``; padding is not read."""
        lengths = lengths.clamp(min=1).cpu()  # a row without symbols is masked like padding
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=x.shape[1]
        )
        return y

    def decode(
        self, inputs: Tensor, lengths: Tensor, memories: list[Memory], noise: PrenetNoise | None
    ) -> Decoded:
        """See :class:`TTSModel`."""
        with _exact(inputs):
            steps = torch.arange(inputs.shape[1], device=inputs.device)
            x, (memory,) = self.prenet(inputs, noise, steps), memories
            hidden, weights = self._through(x, memory)
            live = length_mask(lengths, inputs.shape[1])[..., None]
            hidden, weights = hidden * live, weights * live
            return Decoded(*self.frames(hidden), hidden, weights[:, None])

    def start(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_steps: int,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
    ) -> MirrorState:
        """See :class:`TTSModel`; the state's size does not depend on ``max_steps``."""
        memories = self.encode(symbols, symbol_lengths, speakers)
        like = memories[0].v
        return MirrorState(
            t=0,
            frames=like.new_zeros(len(symbols), self.config.reduction_factor * self.num_mels),
            layers=(self.decoder.init_state(memories[0]),),
            memories=tuple(memories),
            positions=None,
            noise=noise,
        )

    def step(self, state: MirrorState) -> tuple[StepOutput, MirrorState]:
        """See :class:`TTSModel`; nothing is changed in place."""
        steps = torch.tensor([state.t], device=state.frames.device)
        x = self.prenet(state.frames[:, None], state.noise, steps)
        memory = state.memories[0]
        if state.window is not None and state.rests is not None:
            seen = state.window.mask(state.rests, memory.mask[:, 0, 0])
            memory = memory._replace(mask=seen[:, None, None])
        hidden, weights, decoder = self.decoder(x, memory, state.layers[0])
        frames, stop = self.frames(hidden)
        after = replace(
            state,
            t=state.t + 1,
            frames=frames.flatten(1),
            layers=(decoder,),
            rests=state.rested(weights),
        )
        return StepOutput(frames, stop, weights, hidden[:, 0]), after

    def values_held(self, num_symbols: Tensor, num_steps: Tensor) -> Tensor:
        """See :class:`TTSModel`."""
        config = self.config
        memory = (config.width + config.attention_width + 2) * num_symbols
        step = (2 * config.location_kernel + 3 * config.attention_width) * num_symbols
        encoder = 6 * config.width * num_symbols
        return memory + step + encoder + (2 * config.decoder_layers + 5) * config.width

    def _through(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """All steps ``x [B, U, P]`` of the decoder: hidden states and attention."""
        state = self.decoder.init_state(memory)
        if not (self.recompute_activations and torch.is_grad_enabled()):
            hidden, weights, _ = self.decoder(x, memory, state)
            return hidden, weights
        parts: list[tuple[Tensor, Tensor]] = []
        for part in x.split(RECOMPUTED_STEPS, 1):
            *row, state = checkpoint(self.decoder, part, memory, state, use_reentrant=False)
            parts.append((row[0], row[1]))
        hidden, weights = (torch.cat(rows, 1) for rows in zip(*parts, strict=True))
        return hidden, weights


def _exact(x: Tensor) -> torch.autocast:
    """No matrix product inside is rounded by autocast: a recurrence adds its errors up."""
    return torch.autocast(x.device.type, enabled=False)
