"""Encoder and postnet for the free-run engine of the CPU: their positions as rows, without padding.

Each utterance is computed by itself, whatever the batch it is in.

Shapes: B batch, S symbols, T mel frames, M mel channels, D width, H heads, K head width,
N positions of all utterances one after the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profforce.kernels.free_run import PLACES_MULTIPLE, PackedLinear, Program, room
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import CrossAttention
from profforce.nn.blocks import EncoderBlock
from profforce.nn.convolution import ConvStack
from profforce.nn.masks import length_mask
from profforce.nn.positions import sinusoid

GROUP_ROWS = 256
"""Positions that go through together, in whole utterances: what the caches hold."""


@dataclass(frozen=True)
class Memories:
    """Keys and values of the encoded texts, a pair a decoder layer, as the kernel reads them."""

    lengths: Tensor
    """``[B]`` int64"""
    keys: list[Tensor]
    """``[B, H, K, P]``, P places."""
    values: list[Tensor]
    """``[B, H, P, K]``"""


class Positions:
    """Where the utterances of ``lengths [B]``, each at least 1, lie among N rows."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        ends = lengths.cumsum(0)
        spans = torch.stack([ends - lengths, ends, torch.arange(len(lengths))], 1)
        self.spans = spans.repeat_interleave(lengths, 0)
        """``[N, 3]``"""
        self.place = torch.arange(len(self.spans)) - self.spans[:, 0]
        """``[N]``, position inside the utterance."""

    def group_sizes(self) -> list[int]:
        """Rows of groups of whole utterances, a group for each thread if there can be."""
        most = max(1, min(GROUP_ROWS, len(self.spans) // torch.get_num_threads()))
        sizes = [0]
        for length in self.lengths.tolist():
            if sizes[-1] >= most:
                sizes.append(0)
            sizes[-1] += length
        return sizes


@torch.no_grad()
def encode(
    model: TransformerTTS,
    symbols: Tensor,
    lengths: Tensor,
    speakers: Tensor | None,
    precision: str,
) -> Memories:
    """``TransformerTTS.encode`` of ``symbols [B, S]``."""
    lengths = lengths.clamp(min=1)  # a text without symbols attends to padding
    at = Positions(lengths)
    sizes = at.group_sizes()
    x = model.embedding(symbols[length_mask(lengths, symbols.shape[1])])
    if model.encoder_conv.convs:
        x = x + convolve(model.encoder_conv, x, at, precision)
    width = model.config.width
    table = sinusoid(int(lengths.max()), width, like=x)
    x = x + model.encoder_positions.alpha * table[at.place]
    program = Program()
    normed, read, qkv = room(*x.shape), room(*x.shape), room(len(x), 3 * width)
    inner = room(len(x), model.config.feedforward_width)
    for block in model.encoder:
        assert isinstance(block, EncoderBlock)
        attention, feed = block.attention, block.feedforward
        _norm(program, block.norm_attention, x, normed)
        program.linear(normed, _pack(attention.qkv, precision), qkv)
        program.span_attention(qkv, attention.num_heads, at.spans, read)
        program.linear(read, _pack(attention.out, precision), x, add=True)
        _norm(program, block.norm_feedforward, x, normed)
        activation = feed.activation_name
        program.linear(normed, _pack(feed.inner, precision), inner, activation=activation)
        program.linear(inner, _pack(feed.outer, precision), x, add=True)
    _norm(program, model.encoder_norm, x, normed)
    program.run_once(sizes)
    if model.speaker is not None:
        who = lengths.new_zeros(len(lengths)) if speakers is None else speakers
        normed += model.speaker(who)[at.spans[:, 2]]
    return _remember(model, normed, at, precision)


def _remember(model: TransformerTTS, x: Tensor, at: Positions, precision: str) -> Memories:
    places = -(-int(at.lengths.max()) // PLACES_MULTIPLE) * PLACES_MULTIPLE
    heads, width = model.config.num_heads, model.config.width // model.config.num_heads
    made = Memories(at.lengths, [], [])
    program, kv = Program(), room(len(x), 2 * model.config.width)
    for block in model.decoder:
        cross = block.cross
        assert isinstance(cross, CrossAttention)
        made.keys.append(room(len(at.lengths), heads, width, places))  # the rest is not read
        made.values.append(room(len(at.lengths), heads, places, width))
        program.linear(x, _pack(cross.kv, precision), kv)
        program.remember(kv, at.spans, made.keys[-1], made.values[-1])
    program.run_once(at.group_sizes())
    return made


@torch.no_grad()
def refine(model: TransformerTTS, before: Tensor, lengths: Tensor) -> Tensor:
    """``TransformerTTS.refine`` of normalised frames ``[B, T, M]``; zero beyond ``lengths``."""
    mask = length_mask(lengths, before.shape[1])
    rows = before[mask]
    if model.postnet.convs and len(rows):
        rows = rows + convolve(model.postnet, rows, Positions(lengths[lengths > 0]), "float32")
    after = torch.zeros_like(before)
    after[mask] = rows
    return after


def convolve(stack: ConvStack, x: Tensor, at: Positions, precision: str) -> Tensor:
    """``ConvStack`` in evaluation mode on rows ``x [N, C]`` -> ``[N, C']``."""
    activation = "tanh" if stack.tanh else "relu"
    program = Program()
    for number, conv in enumerate(stack.convs):
        assert isinstance(conv, nn.Conv1d)
        weight = conv.weight.permute(0, 2, 1).flatten(1)
        y = room(len(x), conv.out_channels)
        program.convolution(x, PackedLinear(weight, conv.bias, precision), y, at.spans)
        if number < len(stack.norms):
            norm = stack.norms[number]
            assert isinstance(norm, nn.LayerNorm)
            _norm(program, norm, y, y, activation)
        x = y
    program.run_once(at.group_sizes())
    return x


def _norm(
    program: Program, norm: nn.LayerNorm, x: Tensor, y: Tensor, activation: str = "none"
) -> None:
    program.norm(x, norm.weight, norm.bias, norm.eps, y, activation=activation)


def _pack(layer: nn.Linear, precision: str) -> PackedLinear:
    return PackedLinear(layer.weight, layer.bias, precision)
