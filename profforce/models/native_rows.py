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
from profforce.models.tts import TTSModel
from profforce.nn.attention import CrossAttention
from profforce.nn.blocks import EncoderBlock
from profforce.nn.convolution import ConvStack
from profforce.nn.masks import length_mask
from profforce.nn.positions import distance_slopes

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
    """``TransformerTTS.encode`` of ``symbols [B, S]``, some texts at a time in the same memory."""
    lengths = lengths.clamp(min=1)  # a text without symbols attends to padding
    who = torch.zeros_like(lengths) if speakers is None else speakers
    parts = _parts(lengths, GROUP_ROWS * torch.get_num_threads())
    most = max(int(lengths[part].sum()) for part in parts)
    encoder = _Encoder(model, most, lengths, precision)
    for part in parts:
        packed = symbols[part][length_mask(lengths[part], symbols.shape[1])]
        encoder.run(packed, Positions(lengths[part]), part.start, who[part])
    return encoder.made


def _parts(lengths: Tensor, most: int) -> list[slice]:
    """Neighbouring utterances of ``most`` rows together, or a little more."""
    parts, begin, rows = [], 0, 0
    for number, length in enumerate(lengths.tolist()):
        rows += length
        if rows >= most or number == len(lengths) - 1:
            parts.append(slice(begin, number + 1))
            begin, rows = number + 1, 0
    return parts


class _Encoder:
    """The encoder's programs, with room for ``rows`` positions at a time."""

    def __init__(self, model: TransformerTTS, rows: int, lengths: Tensor, precision: str) -> None:
        self.model, self.precision = model, precision
        self.width = model.config.width
        self.spans = torch.empty(rows, 3, dtype=torch.int64)
        self.embedded, self.x = room(rows, self.width), room(rows, self.width)
        self.normed = room(rows, self.width)
        self.table = model.encoder_positions.table(int(lengths.max()), self.width)
        self.convolutions = Program()
        self.convolved = add_convolutions(
            self.convolutions, model.encoder_conv, self.embedded, self.spans, precision
        )
        self.blocks = self._blocks(rows)
        self.made = Memories(lengths, [], [])
        self.memories = self._memories(rows)

    def run(self, symbols: Tensor, at: Positions, first: int, speakers: Tensor) -> None:
        """Encode ``symbols [N]`` of the utterances from number ``first`` on."""
        count, sizes = len(symbols), at.group_sizes()
        self.spans[:count] = at.spans
        self.spans[:count, 2] += first
        x = self.x[:count]
        torch.index_select(self.model.embedding.weight, 0, symbols, out=self.embedded[:count])
        if self.table is None:
            x.copy_(self.embedded[:count])
        else:
            torch.index_select(self.table, 0, at.place, out=x)
            x += self.embedded[:count]
        if self.model.encoder_conv.convs:
            self.convolutions.run_once(sizes)
            x += self.convolved[:count]
        self.blocks.run_once(sizes)
        if self.model.speaker is not None:
            self.normed[:count] += self.model.speaker(speakers)[at.spans[:, 2]]
        self.memories.run_once(sizes)

    def _blocks(self, rows: int) -> Program:
        program, x, normed = Program(), self.x, self.normed
        read, qkv = room(rows, self.width), room(rows, 3 * self.width)
        inner = room(rows, self.model.config.feedforward_width)
        for block in self.model.encoder:
            assert isinstance(block, EncoderBlock)
            attention, feed = block.attention, block.feedforward
            _norm(program, block.norm_attention, x, normed)
            program.linear(normed, self._pack(attention.qkv), qkv)
            heads = attention.num_heads
            slopes = distance_slopes(heads) if attention.by_distance else None
            program.span_attention(qkv, heads, self.spans, read, slopes)
            program.linear(read, self._pack(attention.out), x, add=True)
            _norm(program, block.norm_feedforward, x, normed)
            activation = feed.activation_name
            program.linear(normed, self._pack(feed.inner), inner, activation=activation)
            program.linear(inner, self._pack(feed.outer), x, add=True)
        _norm(program, self.model.encoder_norm, x, normed)
        return program

    def _memories(self, rows: int) -> Program:
        made, batch = self.made, len(self.made.lengths)
        places = -(-int(made.lengths.max()) // PLACES_MULTIPLE) * PLACES_MULTIPLE
        heads = self.model.config.num_heads
        program, kv, head = Program(), room(rows, 2 * self.width), self.width // heads
        for block in self.model.decoder:
            cross = block.cross
            assert isinstance(cross, CrossAttention)
            made.keys.append(room(batch, heads, head, places))  # beyond a text it is not read
            made.values.append(room(batch, heads, places, head))
            program.linear(self.normed, self._pack(cross.kv), kv)
            program.remember(kv, self.spans, made.keys[-1], made.values[-1])
        return program

    def _pack(self, layer: nn.Linear) -> PackedLinear:
        return PackedLinear(layer.weight, layer.bias, self.precision)


@torch.no_grad()
def refine(model: TTSModel, before: Tensor, lengths: Tensor) -> Tensor:
    """``TTSModel.refine`` of normalised frames ``[B, T, M]``; zero beyond ``lengths``."""
    mask = length_mask(lengths, before.shape[1])
    rows = before[mask]
    if model.postnet.convs and len(rows):
        at, program = Positions(lengths[lengths > 0]), Program()
        rest = add_convolutions(program, model.postnet, rows, at.spans, "float32")
        program.run_once(at.group_sizes())
        rows = rows + rest
    after = torch.zeros_like(before)
    after[mask] = rows
    return after


def add_convolutions(
    program: Program, stack: ConvStack, x: Tensor, spans: Tensor, precision: str
) -> Tensor:
    """``ConvStack`` in evaluation mode on rows ``x [N, C]``; returns where its rows will lie."""
    activation = "tanh" if stack.tanh else "relu"
    for number, conv in enumerate(stack.convs):
        assert isinstance(conv, nn.Conv1d)
        weight = conv.weight.permute(0, 2, 1).flatten(1)
        y = room(len(x), conv.out_channels)
        program.convolution(x, PackedLinear(weight, conv.bias, precision), y, spans)
        if number < len(stack.norms):
            norm = stack.norms[number]
            assert isinstance(norm, nn.LayerNorm)
            _norm(program, norm, y, y, activation)
        x = y
    return x


def _norm(
    program: Program, norm: nn.LayerNorm, x: Tensor, y: Tensor, activation: str = "none"
) -> None:
    program.norm(x, norm.weight, norm.bias, norm.eps, y, activation=activation)
