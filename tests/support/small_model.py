"""A small model and texts for it."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from profforce.config import CrossAttentionKind, ModelConfig, PositionsKind
from profforce.models.transformer import TransformerTTS
from profforce.nn.forward import ForwardCrossAttention
from profforce.nn.monotonic import MonotonicCrossAttention

NUM_SYMBOLS, NUM_MELS = 12, 6
PLACES: list[dict[str, object]] = [
    {"cross_attention": cross, "positions": positions, "recent_steps": recent}
    for cross, positions, recent in (
        (CrossAttentionKind.content, PositionsKind.absolute, 1),
        (CrossAttentionKind.monotonic, PositionsKind.absolute, 1),
        (CrossAttentionKind.content, PositionsKind.relative, 4),
        (CrossAttentionKind.monotonic, PositionsKind.relative, 1),
        (CrossAttentionKind.monotonic, PositionsKind.relative, 3),
        (CrossAttentionKind.forward, PositionsKind.absolute, 1),
        (CrossAttentionKind.forward, PositionsKind.relative, 3),
    )
]
"""Every way of knowing where one is."""


def config(**changes: object) -> ModelConfig:
    small = ModelConfig(
        width=16,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=2,
        feedforward_width=24,
        encoder_conv_layers=1,
        encoder_conv_kernel=3,
        prenet_width=8,
        postnet_layers=2,
        postnet_width=8,
        postnet_kernel=3,
    )
    return replace(small, **changes)


def build(dtype: torch.dtype, seed: int = 0, **changes: object) -> TransformerTTS:
    torch.manual_seed(seed)
    model = TransformerTTS(config(**changes), NUM_SYMBOLS, NUM_MELS).to(dtype).eval()
    for block in model.decoder:  # ReZero starts at zero: open the gates, or nothing is tested
        if block.gates is not None:
            nn.init.constant_(block.gates, 0.5)
    stir(model)
    model.set_mel_statistics(torch.linspace(-6, -3, NUM_MELS), torch.linspace(1, 2, NUM_MELS))
    return model


def texts(batch: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (batch,), generator=g)
    symbols = torch.randint(1, NUM_SYMBOLS, (batch, int(lengths.max())), generator=g)
    return symbols * (torch.arange(symbols.shape[1]) < lengths[:, None]), lengths


def stir(model: TransformerTTS) -> None:
    """Let advances and moves depend on their inputs, heads on their number: at first none do."""
    for block in model.decoder:
        if isinstance(block.cross, MonotonicCrossAttention):
            nn.init.normal_(block.cross.advance_weight)
            nn.init.normal_(block.cross.offset)
            nn.init.normal_(block.cross.log_sigma, 0.5, 0.3)
        elif isinstance(block.cross, ForwardCrossAttention):
            nn.init.normal_(block.cross.move.weight)
            nn.init.normal_(block.cross.move.bias)
