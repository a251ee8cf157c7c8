"""The free-run engine of the CPU: the decoder step as a program that C++ steps by itself.

It makes the frames of the plain mirror (in float32 within rounding) from the model's own
parameters, packed anew for every run, so that nothing goes stale. The decoder computes every
utterance by one sequence of operations, whatever the batch it is in. Utterances go through in
groups of like length; those that end make room at once.

Shapes: B batch, S symbols, U decoder steps, D width, H heads, K head width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from profforce.kernels import free_run as kernel
from profforce.kernels.free_run import (
    PLACES_MULTIPLE,
    FreeRunner,
    Location,
    PackedLinear,
    Program,
    Walk,
)
from profforce.kernels.state import LinearState
from profforce.models.free_run import Outputs
from profforce.models.native_rows import Memories, encode
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TTSModel
from profforce.nn.attention import (
    CrossAttention,
    EncoderSelfAttention,
    LinearSelfAttention,
    SoftmaxSelfAttention,
)
from profforce.nn.blocks import DecoderBlock, EncoderBlock, FeedForward
from profforce.nn.convolution import ConvStack
from profforce.nn.forward import FLOOR, NUM_MOVES, ForwardCrossAttention, first_symbol
from profforce.nn.monotonic import MonotonicCrossAttention
from profforce.nn.noise import PrenetNoise
from profforce.nn.positions import NoPositions, RecentSteps, ScaledPositions
from profforce.nn.prenet import Prenet

GROUP_SIZE = 64
"""Utterances that go through together: enough for the matrices, few enough for the caches."""
STEPS_A_CALL = 64
"""Between two calls Python sees its signals."""

Packer = Callable[[nn.Module], PackedLinear]

_KNOWN = (
    *(TransformerTTS, Prenet, ConvStack, ScaledPositions, EncoderBlock, DecoderBlock, FeedForward),
    *(EncoderSelfAttention, LinearSelfAttention, SoftmaxSelfAttention, CrossAttention),
    *(NoPositions, RecentSteps, MonotonicCrossAttention, ForwardCrossAttention),
    *(nn.Linear, nn.LayerNorm, nn.Conv1d, nn.Embedding, nn.Identity, nn.Dropout, nn.ModuleList),
)


def obstacle(model: TTSModel) -> str | None:
    """Why this engine cannot run the model as it stands; None if it can.

    A user's own layer, or a known one that was changed (hooks, parametrisations, another type),
    is run by the plain mirror, which calls the modules themselves.
    """
    if model.mel_mean.device.type != "cpu":
        return f"the model is on {model.mel_mean.device}"
    for name, module in model.named_modules():
        if type(module) not in _KNOWN:
            return f"{type(module).__name__} {name} has no form in C++"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{type(module).__name__} {name} has hooks"
    if any(p.dtype != torch.float32 for p in model.parameters()):
        return "its parameters are not float32"
    if model.config.width // model.config.num_heads > kernel.MAX_HEAD_WIDTH:
        return f"a head is wider than {kernel.MAX_HEAD_WIDTH}"
    if not kernel.is_available():
        return "there is no C++ library"
    return None


@torch.no_grad()
def run_native(
    model: TransformerTTS,
    symbols: Tensor,
    symbol_lengths: Tensor,
    max_frames: Tensor,
    outputs: Outputs,
    *,
    noise: PrenetNoise | None,
    speakers: Tensor | None,
    stop_threshold: float,
    precision: str,
) -> None:
    """Fill ``outputs``; the other arguments are those of ``Mirror.free_run``."""
    runner = prepare(
        model,
        symbols,
        symbol_lengths,
        max_frames,
        outputs,
        noise=noise,
        speakers=speakers,
        stop_threshold=stop_threshold,
        precision=precision,
    )
    while runner.advance(STEPS_A_CALL):
        pass


@torch.no_grad()
def prepare(
    model: TTSModel,
    symbols: Tensor,
    symbol_lengths: Tensor,
    max_frames: Tensor,
    outputs: Outputs,
    *,
    noise: PrenetNoise | None,
    speakers: Tensor | None,
    stop_threshold: float,
    precision: str,
) -> FreeRunner:
    """Encode the texts; what takes their steps into ``outputs`` and keeps state between calls."""
    assert isinstance(model, TransformerTTS)  # or there is an obstacle
    frames = model.config.reduction_factor
    max_frames, symbol_lengths = max_frames.long().contiguous(), symbol_lengths.long()
    max_steps = outputs.mel.shape[1] // frames
    order = torch.argsort(max_frames * 4096 + symbol_lengths, stable=True)
    threads = torch.get_num_threads()
    size = max(1, min(GROUP_SIZE, -(-len(order) // threads)))
    memory = encode(model, symbols, symbol_lengths, speakers, precision)
    rows = _Rows(model, len(symbols))
    program = _decoder_step(model, rows, memory, outputs, noise, max_steps, precision)
    return FreeRunner(
        program,
        order,
        [min(size, len(order) - first) for first in range(0, len(order), size)],
        max_steps,
        kernel.Outputs(
            fed_back=rows.fed_back,
            frames=rows.frames,
            stop_logits=rows.stop,
            mel=outputs.mel,
            stop=outputs.stop,
            lengths=outputs.lengths,
            stopped=outputs.stopped,
            max_frames=max_frames,
            threshold=stop_threshold,
            scale=model.mel_std.repeat(frames) if outputs.natural else None,
            shift=model.mel_mean.repeat(frames) if outputs.natural else None,
        ),
    )


class _Rows:
    """Activations of one decoder step, ``[B, ...]`` each."""

    def __init__(self, model: TransformerTTS, batch: int) -> None:
        config = model.config
        self.fed_back = torch.zeros(batch, config.reduction_factor * model.num_mels)
        self.frames = torch.empty_like(self.fed_back)
        self.stop = torch.empty(batch, config.reduction_factor)
        self.prenet = [torch.empty(batch, config.prenet_width) for _ in range(config.prenet_layers)]
        self.x = torch.empty(batch, config.width)
        self.normed = torch.empty_like(self.x)
        self.read = torch.empty_like(self.x)
        self.query = torch.empty_like(self.x)
        self.qkv = torch.empty(batch, 3 * config.width)
        self.inner = torch.empty(batch, config.feedforward_width)
        self.advance = torch.empty(batch, 1)
        self.moves = torch.empty(batch, NUM_MOVES)


def _decoder_step(
    model: TransformerTTS,
    rows: _Rows,
    memory: Memories,
    outputs: Outputs,
    noise: PrenetNoise | None,
    max_steps: int,
    precision: str,
) -> Program:
    """``Mirror.step`` as a program."""
    program = Program()

    def packed(layer: nn.Module) -> PackedLinear:
        assert isinstance(layer, nn.Linear)
        return PackedLinear(layer.weight, layer.bias, precision)

    who = None if noise is None else noise.utterances.long().contiguous()
    x = rows.fed_back
    for number, layer in enumerate(model.prenet.layers):
        program.linear(x, packed(layer), rows.prenet[number], activation="relu")
        x = rows.prenet[number]
        if noise is not None and who is not None and model.prenet.dropout > 0:
            program.dropout(x, noise.key(number), who, model.prenet.dropout)
    program.linear(x, packed(model.decoder_in), rows.x)
    positions = model.decoder_positions.table(max_steps, model.config.width)
    if positions is not None:
        program.positions(rows.x, positions)
    if model.recent_steps is not None:
        _recent_steps(program, model.recent_steps, rows, precision)
    first_shown = len(model.decoder) - model.config.guided_layers
    for number, block in enumerate(model.decoder):
        assert isinstance(block, DecoderBlock)
        weights = None
        if number >= first_shown and outputs.alignments.shape[1]:
            heads = model.config.guided_heads
            begin = (number - first_shown) * heads
            weights = outputs.alignments[:, begin : begin + heads]
        _block_step(program, block, rows, memory, number, weights, max_steps, packed)
    norm = model.decoder_norm
    program.norm(rows.x, norm.weight, norm.bias, norm.eps, rows.normed)
    program.linear(rows.normed, packed(model.mel_out), rows.frames)
    program.linear(rows.normed, packed(model.stop_out), rows.stop)
    return program


def _block_step(
    program: Program,
    block: DecoderBlock,
    rows: _Rows,
    memory: Memories,
    number: int,
    weights: Tensor | None,
    max_steps: int,
    packed: Packer,
) -> None:
    """``DecoderBlock.step`` as operations; see there."""
    assert isinstance(block.attention, LinearSelfAttention | SoftmaxSelfAttention)
    _self_attention(
        program, block.attention, _normed(program, block, 0, rows), rows, max_steps, packed
    )
    program.linear(rows.read, packed(block.attention.out), rows.x, add=True, gate=_gate(block, 0))
    x = _normed(program, block, 1, rows)
    program.linear(x, packed(block.cross.q), rows.query)
    location = _location(program, block.cross, x, rows)
    walk = None
    if isinstance(block.cross, ForwardCrossAttention):
        program.linear(x, packed(block.cross.move), rows.moves)
        places = memory.values[number].shape[2]
        walk = Walk(rows.moves, first_symbol(x.new_empty(len(x), places)).contiguous(), FLOOR)
    program.attention(
        rows.query,
        memory.keys[number],
        memory.values[number],
        rows.read,
        lengths=memory.lengths,
        weights=weights,
        location=location,
        walk=walk,
    )
    program.linear(rows.read, packed(block.cross.out), rows.x, add=True, gate=_gate(block, 1))
    feed = block.feedforward
    activation = block.feedforward.activation_name
    program.linear(
        _normed(program, block, 2, rows), packed(feed.inner), rows.inner, activation=activation
    )
    program.linear(rows.inner, packed(feed.outer), rows.x, add=True, gate=_gate(block, 2))


def _location(program: Program, cross: CrossAttention, x: Tensor, rows: _Rows) -> Location | None:
    """Where the text is read from ``x [B, D]`` on; None by content alone."""
    if not isinstance(cross, MonotonicCrossAttention):
        return None
    layer = PackedLinear(cross.advance_weight[None], cross.advance_bias[None])
    program.linear(x, layer, rows.advance)
    centre = torch.zeros(len(x), dtype=torch.float64)
    return Location(rows.advance, centre, cross.offset.detach(), cross.log_sigma.detach())


def _recent_steps(program: Program, layer: RecentSteps, rows: _Rows, precision: str) -> None:
    batch, width = rows.x.shape
    past = layer.init_state(batch, rows.x)
    seen = torch.empty(batch, (past.shape[1] + 1) * width)
    program.recent(rows.x, past, seen)
    matrix = PackedLinear(layer.matrix(), layer.conv.bias, precision)
    program.linear(seen, matrix, rows.x, add=True)


def _normed(program: Program, block: DecoderBlock, number: int, rows: _Rows) -> Tensor:
    norm = block.norms[number]
    if isinstance(norm, nn.Identity):
        return rows.x
    assert isinstance(norm, nn.LayerNorm)
    program.norm(rows.x, norm.weight, norm.bias, norm.eps, rows.normed)
    return rows.normed


def _gate(block: DecoderBlock, number: int) -> Tensor | None:
    return None if block.gates is None else block.gates.detach()[number]


def _self_attention(
    program: Program,
    attention: LinearSelfAttention | SoftmaxSelfAttention,
    x: Tensor,
    rows: _Rows,
    max_steps: int,
    packed: Packer,
) -> None:
    program.linear(x, packed(attention.qkv), rows.qkv)
    heads, width = attention.num_heads, x.shape[1] // attention.num_heads
    if isinstance(attention, LinearSelfAttention):
        state = LinearState(
            kernel.room(len(x), heads, width, width, zero=True), x.new_zeros(len(x), heads, width)
        )
        program.linear_attention(rows.qkv, state, attention.feature_map, rows.read)
        return
    places = -(-max_steps // PLACES_MULTIPLE) * PLACES_MULTIPLE
    keys, values = (
        x.new_zeros(len(x), heads, width, places),
        x.new_zeros(len(x), heads, places, width),
    )
    program.attention(rows.qkv, keys, values, rows.read)
