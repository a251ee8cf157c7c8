"""The free-run engine of CUDA: graphs of many decoder steps, looked at by the host once a replay.

It makes the frames of the plain mirror (within rounding). A step is some hundred small kernels,
whose launching costs more than their work; a graph launches ``STEPS_A_GRAPH`` steps at once. Which
utterances are done is found out on the device, and the host asks after a replay whether any still
runs. Utterances go through in groups of like length; when half of a group has ended, the rest
moves into a smaller graph.

Shapes: B batch, S symbols, U decoder steps, N steps of a graph, R reduction factor, M mel channels,
D width.
"""

import functools
import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from profforce.models.free_run import Outputs
from profforce.models.graph_machine import CaptureError, Machine, bucket, machine_for
from profforce.models.graph_room import Decoder, Size
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import CrossAttention, LinearSelfAttention, Memory, SelfAttention
from profforce.nn.blocks import DecoderBlock, FeedForward
from profforce.nn.forward import ForwardCrossAttention
from profforce.nn.modes import evaluating
from profforce.nn.monotonic import MonotonicCrossAttention
from profforce.nn.noise import PrenetNoise
from profforce.nn.positions import RecentSteps
from profforce.nn.prenet import Prenet

log = logging.getLogger(__name__)

STEPS_A_GRAPH = 32
"""Enough that launching a graph is nothing, few enough that an utterance's end is soon noticed."""
GROUP_SIZE = 128
"""Utterances that go through together."""
SYMBOLS_MULTIPLE = 64
PLACES_MULTIPLE = 256
"""Sizes are rounded up, so that the next run finds a graph that fits."""

_KNOWN = (
    *(Decoder, Prenet, RecentSteps, DecoderBlock, FeedForward),
    *(CrossAttention, MonotonicCrossAttention, ForwardCrossAttention, nn.Conv1d),
    *(nn.Linear, nn.LayerNorm, nn.Identity, nn.Dropout, nn.ModuleList),
)


def obstacle(model: TransformerTTS) -> str | None:
    """Why this engine cannot run the model as it stands; None if it can.

    What a layer does on the host happens once, when it is captured, and never again. So only
    layers run here that are known to do nothing there, or whose class says so.
    """
    device = model.mel_mean.device
    return f"the model is on {device}" if device.type != "cuda" else unfit(model)


def unfit(model: TransformerTTS) -> str | None:
    """What in the model, wherever it is, no graph can repeat; None if there is nothing."""
    if model in _REFUSED:
        return _REFUSED[model]
    if type(model).frames is not TransformerTTS.frames:
        return f"{type(model).__name__} makes frames in its own way"
    promised: tuple[str, ...] = ()
    for name, module in Decoder(model).named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{type(module).__name__} {name} has hooks"
        if isinstance(module, SelfAttention):
            if not vars(type(module)).get("steps_on_device", False):
                return f"{type(module).__name__} {name} does not say steps_on_device"
            promised += (f"{name}.",)
        elif type(module) not in _KNOWN and not name.startswith(promised):
            return f"{type(module).__name__} {name} is not known to repeat itself"
    return None


@torch.no_grad()
def run_on_device(
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
    steps_a_graph: int = STEPS_A_GRAPH,
    group_size: int = GROUP_SIZE,
    compact: bool = True,
) -> None:
    """Fill ``outputs``; the other arguments are those of ``Mirror.free_run``.

    On another device than CUDA the same steps run one by one.

    Args:
        steps_a_graph: N.
        group_size: utterances that go through together.
        compact: let the rest move into a smaller graph when half of a group has ended.

    Raises:
        CaptureError: if the steps cannot be captured; all of ``outputs`` can then be filled anew.
    """
    if precision == "int8":
        _say_once(logging.WARNING, "CUDA has no int8 weights for generation: bfloat16 is used")
        precision = "bfloat16"
    _say_once(logging.INFO, f"free-running on {symbols.device} by graphs of {steps_a_graph} steps")
    if noise is not None and model.prenet.dropout == 0:
        noise = None
    max_steps = outputs.mel.shape[1] // outputs.frames_a_step
    replays = -(-max_steps // steps_a_graph)
    order = torch.argsort(max_frames * 4096 + symbol_lengths, stable=True)
    with evaluating(model):
        memories = model.encode(symbols, symbol_lengths, speakers)
    need = Size(
        rows=bucket(min(group_size, len(order))),
        symbols=_up(symbols.shape[1], SYMBOLS_MULTIPLE),
        places=_up(replays * steps_a_graph, PLACES_MULTIPLE) * _has_caches(model),
        steps=steps_a_graph,
    )
    positions = _positions(model, replays * steps_a_graph)
    try:
        machine = machine_for(model, need, noisy=noise is not None, precision=precision)
        run = _Run(
            machine, memories, positions, max_frames, outputs, noise, stop_threshold, compact
        )
        for group in order.split(group_size):
            run.speak(group)
    except CaptureError as err:
        _REFUSED[model] = str(err)
        outputs.lengths.zero_()
        raise


@dataclass(frozen=True)
class _Run:
    """What all groups of a free run have in common."""

    machine: Machine
    memories: Sequence[Memory]
    positions: Tensor
    """``[U, D]``, U a multiple of N."""
    max_frames: Tensor
    outputs: Outputs
    noise: PrenetNoise | None
    threshold: float
    compact: bool

    def speak(self, rows: Tensor) -> None:
        """Generate utterances ``rows [n]`` of the batch to their ends."""
        room, steps = self.machine.room, self.machine.room.num_steps
        room.enter(self.memories, rows)
        for number, positions in enumerate(self.positions.split(steps)):
            noise = None if self.noise is None else self.noise.select(rows)
            room.prepare(positions, noise, self.machine.dropout, number * steps)
            self.machine.replay(len(rows))
            self._write(number, rows)
            running = (self.outputs.lengths[rows] == 0).nonzero()[:, 0]  # the host waits here
            if not len(running):
                return
            if self.compact and bucket(len(running)) < bucket(len(rows)):
                room.keep(running)
                rows = rows[running]
        raise AssertionError("an utterance ran past its limit")

    def _write(self, number: int, rows: Tensor) -> None:
        """Keep what replay ``number`` made: its frames are as if of one long step."""
        room, out, here = self.machine.room, self.outputs, slice(len(rows))
        whole = replace(out, frames_a_step=room.num_steps * out.frames_a_step)
        probability = room.stop_logits[here].flatten(1).sigmoid()
        begin = number * whole.frames_a_step
        count = min(whole.frames_a_step, out.mel.shape[1] - begin)
        mel = room.mel[here].reshape(*probability.shape, -1)
        out.mel[rows, begin : begin + count] = mel[:, :count]
        out.stop[rows, begin : begin + count] = probability[:, :count]
        if out.alignments.shape[1]:
            begin, count = begin // out.frames_a_step, count // out.frames_a_step
            seen = room.alignments[here, :, :count, : out.alignments.shape[3]]
            out.alignments[rows, :, begin : begin + count] = seen
        whole.end(number, rows, probability, self.max_frames, self.threshold)


_REFUSED: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()
"""Why a model's steps could not be captured: once is enough."""


def _has_caches(model: TransformerTTS) -> bool:
    """Whether the state of a layer grows with the number of steps, as far as is known."""
    return any(type(block.attention) is not LinearSelfAttention for block in model.decoder)


def _positions(model: TransformerTTS, num_steps: int) -> Tensor:
    """``[U, D]`` that steps add to their inputs; zeros where places are told in another way."""
    table = model.decoder_positions.table(num_steps, model.config.width)
    return model.mel_mean.new_zeros(num_steps, model.config.width) if table is None else table


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@functools.cache
def _say_once(level: int, text: str) -> None:
    log.log(level, text)
