"""The batch model: text encoder and autoregressive mel decoder, run in parallel over time.

Shapes: B batch, S symbols, T mel frames, R reduction factor, U = ceil(T / R) decoder steps,
M mel channels, D width, G guided heads. Mels are natural-log amplitudes.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from profforce.config import ModelConfig, PositionsKind
from profforce.models.mirror_state import MirrorState, StepOutput
from profforce.models.segments import Decoded, decode_in_segments
from profforce.models.tts import TTSModel, build_postnet, encoder_convolutions
from profforce.nn.attention import Memory
from profforce.nn.blocks import DecoderBlock, EncoderBlock
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.nn.positions import NoPositions, RecentSteps, ScaledPositions
from profforce.nn.prenet import Prenet


class TransformerTTS(TTSModel):
    """Encoder-decoder Transformer for mel frames (Li et al. 2019, arXiv:1809.08895), pre-norm."""

    encoder_positions: NoPositions | ScaledPositions
    decoder_positions: NoPositions | ScaledPositions

    def __init__(self, config: ModelConfig, num_symbols: int, num_mels: int) -> None:
        super().__init__(config, num_mels)
        width, frames = config.width, config.reduction_factor
        self.embedding = nn.Embedding(num_symbols, width)
        self.speaker = nn.Embedding(config.num_speakers, width) if config.num_speakers else None
        self.encoder_conv = encoder_convolutions(config)
        relative = config.positions == PositionsKind.relative
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
        self.postnet = build_postnet(config, num_mels)

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

    def decode(
        self, inputs: Tensor, lengths: Tensor, memories: list[Memory], noise: PrenetNoise | None
    ) -> Decoded:
        """See :class:`TTSModel`."""
        if self.segment_steps is not None:
            return decode_in_segments(self, inputs, lengths, memories, noise, self.segment_steps)
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.decoder_in(self.prenet(inputs, noise, steps)).to(inputs.dtype)  # if autocast
        x = self.decoder_positions(x)
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
        with torch.autocast(x.device.type, enabled=False):  # outputs are as exact as the weights
            hidden = self.decoder_norm(x) * live[..., None]
            mel, stop = self.frames(hidden)
        alignments = torch.cat(guided[-self.config.guided_layers :], 1).to(hidden.dtype)
        return Decoded(mel, stop, hidden, alignments * live[:, None, :, None])

    def start(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_steps: int,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
    ) -> MirrorState:
        """See :class:`TTSModel`."""
        memories = self.encode(symbols, symbol_lengths, speakers)
        like, steps = memories[0].k, self.recent_steps
        return MirrorState(
            t=0,
            frames=like.new_zeros(len(symbols), self.config.reduction_factor * self.num_mels),
            layers=tuple(
                block.init_state(len(symbols), max_steps, symbols.shape[1], like)  # type: ignore[operator]
                for block in self.decoder
            ),
            memories=tuple(memories),
            positions=self.decoder_positions.table(max_steps, self.config.width),
            noise=noise,
            recent=None if steps is None else steps.init_state(len(symbols), like),
        )

    def step(self, state: MirrorState) -> tuple[StepOutput, MirrorState]:
        """See :class:`TTSModel`."""
        steps = torch.tensor([state.t], device=state.frames.device)
        x = self.decoder_in(self.prenet(state.frames[:, None], state.noise, steps)[:, 0])
        if state.positions is not None:
            x = x + state.positions[state.t]
        recent = state.recent
        if self.recent_steps is not None and recent is not None:
            x, recent = self.recent_steps.step(x, recent)
        layers, guided = [], []
        memories = self._windowed(state)
        for block, layer, memory in zip(self.decoder, state.layers, memories, strict=True):
            x, layer, weights = block.step(x, layer, memory, state.t)  # type: ignore[operator]
            layers.append(layer)
            guided.append(weights[:, : self.config.guided_heads])
        hidden = self.decoder_norm(x)
        frames, stop = self.frames(hidden[:, None])
        alignments = torch.cat(guided[-self.config.guided_layers :], 1)
        after = replace(
            state,
            t=state.t + 1,
            frames=frames.flatten(1),
            layers=tuple(layers),
            recent=recent,
            rests=state.rested(alignments),
        )
        return StepOutput(frames, stop, alignments, hidden), after

    def _windowed(self, state: MirrorState) -> tuple[Memory, ...]:
        """The memories, of which the guided heads of guided layers see the window alone."""
        if state.window is None or state.rests is None:
            return state.memories
        config = self.config
        seen = state.window.mask(state.rests, state.memories[0].mask[:, 0, 0])
        free = torch.arange(config.num_heads, device=seen.device) >= config.guided_heads
        heads = (seen[:, None] | free[:, None])[:, :, None]
        first = config.decoder_layers - config.guided_layers
        return tuple(
            memory if number < first else memory._replace(mask=memory.mask & heads)
            for number, memory in enumerate(state.memories)
        )

    def values_held(self, num_symbols: Tensor, num_steps: Tensor) -> Tensor:
        """See :class:`TTSModel`."""
        config = self.config
        memory = 2 * config.width * config.decoder_layers * num_symbols
        state: Tensor | float
        if config.attention == "linear":
            state = config.decoder_layers * config.width * (config.width / config.num_heads)
        else:
            state = 2 * config.width * config.decoder_layers * num_steps
        encoder = (6 * config.width + config.feedforward_width) * num_symbols
        return memory + state + encoder

    def _through(self, block: nn.Module, *inputs: Any) -> Any:
        if self.recompute_activations and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)
