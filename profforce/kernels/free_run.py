"""Free-running a decoder on the CPU without the interpreter: see ``free_run.cpp``.

A :class:`Program` is one decoder step as a list of operations on rows; a :class:`FreeRunner` takes
its steps for groups of utterances in C++. Activations are float32 and have one row for each running
utterance, results and states one for each utterance.

Shapes: B utterances, D width, H heads, K head width, T mel frames, R frames a step, U steps,
M mel channels, S symbols, N positions of all utterances one after the other. ``spans [N, 3]`` int64
gives each position the first and last + 1 of its utterance, and the utterance's number.
"""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from profforce.kernels import free_run_abi as abi
from profforce.kernels import native
from profforce.kernels.cpu import openmp_parallel
from profforce.kernels.state import EPS, FEATURE_MAP_NUMBERS, LinearState

MAX_HEAD_WIDTH = 256
PLACES_MULTIPLE = 16
"""Memories of :meth:`Program.attention` have room for a multiple of this many places."""
TYPES = {"float32": 0, "bfloat16": 1, "int8": 2}
_DATA = {"float32": torch.float32, "bfloat16": torch.int16, "int8": torch.int8}
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3, "tanh": 4}
_LINEAR, _NORM, _DROPOUT, _POSITIONS, _LINEAR_ATTENTION, _ATTENTION, _SPANS, _REMEMBER = range(8)
_RECENT = 8


def is_available() -> bool:
    """Whether there is a C++ library to run programs."""
    return native.library() is not None


def is_fast(precision: str) -> bool:
    """Whether this processor has instructions for products of that kind.

    Without them the numbers are the same within rounding, and the weights as small, but products
    cost more than in float32.
    """
    return bool(_function("pf_has_dot", ctypes.c_int)(abi.Int(TYPES[precision])))


def room(*shape: int, zero: bool = False) -> Tensor:
    """A float32 tensor in large pages, whose first use costs little."""
    made = torch.empty(shape)
    _function("pf_huge_pages")(abi.Pointer(made.data_ptr()), abi.Long(4 * made.numel()))
    return made.zero_() if zero else made


class PackedLinear:
    """A copy of a linear layer's weight in the order in which the kernel reads it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str = "float32") -> None:
        """Pack ``weight [n, k]``, float32; ``bias [n]`` is not copied but read where it lies.

        Args:
            weight: on the CPU.
            bias: None stands for zero.
            precision: ``float32``, ``bfloat16`` or ``int8`` (a scale an output); inputs are rounded
                in the same way, int8 with a scale a row.
        """
        weight = weight.detach()
        weight = weight if weight.stride(-1) == 1 else weight.contiguous()
        outputs, inputs = weight.shape
        kind, is_int8 = TYPES[precision], precision == "int8"
        size = _function("pf_packed_size", abi.Long)(
            abi.Int(outputs), abi.Int(inputs), abi.Int(kind)
        )
        padded = _function("pf_padded_outputs", abi.Long)(abi.Int(outputs))
        self._data = torch.empty(size, dtype=_DATA[precision])
        self._scale = torch.empty(padded) if is_int8 else None
        self._sums = torch.empty(padded, dtype=torch.int32) if is_int8 else None
        self._bias = None if bias is None else bias.detach().contiguous()
        self.outputs, self.inputs = outputs, inputs
        pointers = map(_pointer, (self._data, self._bias, self._scale, self._sums))
        self.matrix = abi.Matrix(*pointers, outputs, inputs, kind)
        pack = _function("pf_pack")
        pack(ctypes.byref(self.matrix), abi.Pointer(weight.data_ptr()), abi.Long(weight.stride(0)))


class Location(NamedTuple):
    """Where in the text each utterance is, for attention that goes by it: see ``nn.monotonic``."""

    advance: Tensor
    """``[B, 1]`` rows, before softplus."""
    centre: Tensor
    """``[B]`` float64, the sums so far; they advance."""
    offset: Tensor
    """``[H]``"""
    log_sigma: Tensor
    """``[H]``"""


class Walk(NamedTuple):
    """What each utterance attended to in the step before: see ``nn.forward``."""

    moves: Tensor
    """``[B, 3]`` rows, before softmax."""
    reached: Tensor
    """``[B, P]``, the heads' mean; it is replaced."""
    floor: float


class Program:
    """One decoder step. Its tensors are float32, contiguous, on the CPU, and kept alive by it."""

    def __init__(self) -> None:
        self._operations: list[tuple[int, ctypes.Structure]] = []
        self._kept: list[object] = []

    def linear(
        self,
        x: Tensor,
        layer: PackedLinear,
        y: Tensor,
        *,
        activation: str = "none",
        add: bool = False,
        gate: Tensor | None = None,
    ) -> None:
        """``y [B, n] = activation(layer(x [B, k]))``, added to ``y`` and scaled by a number."""
        what = abi.Linear(
            layer.matrix,
            *(_pointer(x), _pointer(y), x.stride(0), y.stride(0)),
            *(ACTIVATIONS[activation], add, _pointer(gate)),
        )
        self._append(_LINEAR, what, x, layer, y, gate)

    def convolution(self, x: Tensor, layer: PackedLinear, y: Tensor, spans: Tensor) -> None:
        """``y [N, n]`` from ``x [N, c]``, another array: the layer sees k / c rows around each."""
        taps = layer.inputs // x.shape[1]
        rows = (_pointer(x), _pointer(y), x.stride(0), y.stride(0))
        what = abi.Linear(layer.matrix, *rows, 0, 0, None, _pointer(spans), taps)
        self._append(_LINEAR, what, x, layer, y, spans)

    def norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        y: Tensor,
        *,
        activation: str = "none",
    ) -> None:
        """Layer norm over the last axis of ``x [B, D]``, then the activation."""
        weight, bias = weight.detach().contiguous(), bias.detach().contiguous()
        pointers = map(_pointer, (x, weight, bias, y))
        what = abi.Norm(*pointers, x.shape[1], eps, ACTIVATIONS[activation])
        self._append(_NORM, what, x, weight, bias, y)

    def dropout(self, x: Tensor, key: int, utterances: Tensor, p: float) -> None:
        """Counter-based dropout of ``x [B, D]`` in place, keyed by ``utterances [B]`` int64."""
        what = abi.Dropout(
            _pointer(x), _pointer(utterances), x.shape[1], key, int(p * 2**32), 1 - p
        )
        self._append(_DROPOUT, what, x, utterances)

    def positions(self, x: Tensor, table: Tensor) -> None:
        """Add row t of ``table [U, D]`` to ``x [B, D]``."""
        what = abi.Positions(_pointer(x), _pointer(table), x.shape[1])
        self._append(_POSITIONS, what, x, table)

    def linear_attention(
        self, qkv: Tensor, state: LinearState, feature_map: str, y: Tensor
    ) -> None:
        """The recurrent step on ``qkv [B, 3 D]``; ``state`` advances, ``y [B, D]`` is read out."""
        heads, width = state.z.shape[1:]
        what = abi.LinearAttention(
            *map(_pointer, (qkv, y, state.s, state.z)),
            *(heads, width, FEATURE_MAP_NUMBERS[feature_map], EPS),
        )
        self._append(_LINEAR_ATTENTION, what, qkv, state, y)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        y: Tensor,
        *,
        lengths: Tensor | None = None,
        weights: Tensor | None = None,
        location: Location | None = None,
        walk: Walk | None = None,
    ) -> None:
        """Softmax attention over a memory, or over the steps so far.

        Args:
            q: ``[B, D]`` queries; without ``lengths`` ``[B, 3 D]``, whose keys and values join the
                memory.
            k: ``[B, H, K, P]``, P places, a multiple of ``PLACES_MULTIPLE``.
            v: ``[B, H, P, K]``.
            y: ``[B, D]``, the result.
            lengths: ``[B]`` int64, places that are filled; None for self-attention.
            weights: view ``[B, shown, U, S]`` of a contiguous tensor, for the first heads.
            location: lets scores fall with the distance from it.
            walk: lets the logarithm of what is expected join the scores.
        """
        heads, width, places = k.shape[1:]
        shown, steps, symbols = (0, 0, 0) if weights is None else weights.shape[1:]
        guided = 0 if weights is None else weights.stride(0) // (steps * symbols)
        what = abi.Attention(
            *map(_pointer, (q, y, k, v, lengths, weights)),
            *(q.stride(0), places, steps, symbols, guided, heads, width, shown),
            abi.Location(*map(_pointer, location or ())),
            abi.Walk() if walk is None else abi.Walk(*map(_pointer, walk[:2]), walk.floor),
        )
        self._append(_ATTENTION, what, q, y, k, v, lengths, weights, location, walk)

    def span_attention(
        self, qkv: Tensor, heads: int, spans: Tensor, y: Tensor, slopes: Tensor | None = None
    ) -> None:
        """Softmax attention of ``qkv [N, 3 D]`` inside each span, in both directions.

        ``slopes [H]`` is what a score loses with each position of distance.
        """
        pointers = map(_pointer, (qkv, y, spans, slopes))
        what = abi.SpanAttention(*pointers, heads, y.shape[1] // heads)
        self._append(_SPANS, what, qkv, spans, y, slopes)

    def recent(self, x: Tensor, past: Tensor, y: Tensor) -> None:
        """``y [B, (kept + 1) D]`` is ``x [B, D]`` behind ``past [B, kept, D]``, which moves on."""
        what = abi.Recent(*map(_pointer, (x, past, y)), *past.shape[1:])
        self._append(_RECENT, what, x, past, y)

    def remember(self, kv: Tensor, spans: Tensor, k: Tensor, v: Tensor) -> None:
        """Put rows ``kv [N, 2 D]`` where :meth:`attention` reads them: ``k``, ``v`` as there."""
        heads, width, places = k.shape[1:]
        what = abi.Remember(*map(_pointer, (kv, k, v, spans)), places, heads, width)
        self._append(_REMEMBER, what, kv, k, v, spans)

    def run_once(self, group_sizes: Sequence[int]) -> None:
        """One pass over rows that are positions, in groups of whole spans."""
        order = torch.arange(sum(group_sizes))
        FreeRunner(self, order, group_sizes, max_steps=1).advance(1)

    def _append(self, kind: int, what: ctypes.Structure, *kept: object) -> None:
        self._operations.append((kind, what))
        self._kept += kept

    def compiled(self) -> Any:
        """The operations as one C array; the program has to outlive it."""
        rows = [abi.Operation(kind, ctypes.addressof(what)) for kind, what in self._operations]
        return (abi.Operation * len(rows))(*rows)


class FreeRunner:
    """Takes the steps of a program for groups of utterances, until each ends."""

    def __init__(
        self,
        program: Program,
        order: Tensor,
        group_sizes: Sequence[int],
        max_steps: int,
        outputs: "Outputs | None" = None,
    ) -> None:
        """Prepare to run.

        Args:
            program: one step.
            order: ``[B]`` int64, the utterances in the order in which groups are formed; those of
                like length together leave no group half empty.
            group_sizes: numbers of rows that go through the program together, B in all.
            max_steps: none runs longer.
            outputs: what each step makes; without them nothing is kept and nothing ends.
        """
        self._program, self._outputs = program, outputs
        self._operations = program.compiled()
        self._utterance = order.clone()
        firsts = itertools.accumulate(group_sizes, initial=0)
        self._groups = (abi.Group * len(group_sizes))(
            *(
                abi.Group(first, size, size, 0)
                for first, size in zip(firsts, group_sizes, strict=False)
            )
        )
        made = abi.Run() if outputs is None else outputs.as_run()
        made.operations = ctypes.addressof(self._operations)
        made.num_operations = len(self._operations)
        made.groups = ctypes.addressof(self._groups)
        made.num_groups = len(group_sizes)
        made.utterance = self._utterance.data_ptr()
        made.threads = torch.get_num_threads()
        made.parallel = openmp_parallel()
        made.max_steps = max_steps
        self._run = made
        self._call = _function("pf_free_run")

    def seek(self, step: int) -> None:
        """Go on at another step; states and memories stay as they are."""
        for group in self._groups:
            group.t = step

    def advance(self, steps: int) -> int:
        """Take up to ``steps`` steps; returns how many utterances still run."""
        self._call(ctypes.byref(self._run), abi.Long(steps))
        limit = self._run.max_steps
        return sum(group.alive for group in self._groups if group.t < limit)


class Outputs:
    """Where the results of a run lie; all contiguous, on the CPU, kept alive by this."""

    def __init__(
        self,
        *,
        fed_back: Tensor,
        frames: Tensor,
        stop_logits: Tensor,
        mel: Tensor,
        stop: Tensor,
        lengths: Tensor,
        stopped: Tensor,
        max_frames: Tensor,
        threshold: float,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        """Name the arrays.

        Args:
            fed_back: ``[B, R M]`` rows that the program reads as the frames of the step before.
            frames: ``[B, R M]`` rows that it writes.
            stop_logits: ``[B, R]`` rows that it writes.
            mel: ``[B, U R, M]``, zeros, gets the frames of each utterance up to its end.
            stop: ``[B, U R]``, gets the probabilities of its end.
            lengths: ``[B]`` int64, 0, gets the number of frames.
            stopped: ``[B]`` bool, whether the stop head said so.
            max_frames: ``[B]`` int64, each at least 1.
            threshold: probability above which a frame is the last one.
            scale: ``[R M]``, multiplies what is kept in ``mel``.
            shift: ``[R M]``, is added to it; without both, frames are kept as they were made.
        """
        self._tensors = (
            *(fed_back, frames, stop_logits, mel, stop, lengths, stopped, max_frames),
            *(scale, shift),
        )
        self._frames_a_step, self._num_mels = stop_logits.shape[1], mel.shape[2]
        self._threshold = threshold

    def as_run(self) -> Any:
        """The part of the C structure that these fill."""
        names = "input frames stop_logits mel stop lengths stopped max_frames scale shift"
        pointers = dict(zip(names.split(), map(_pointer, self._tensors), strict=True))
        return abi.Run(
            **pointers,
            frames_a_step=self._frames_a_step,
            num_mels=self._num_mels,
            threshold=self._threshold,
        )


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _function(name: str, result: Any = None) -> Callable[..., Any]:
    library = native.library()
    assert library is not None, "callers ask is_available() first"
    function: Callable[..., Any] = getattr(library.handle, name)
    function.restype = result  # type: ignore[attr-defined]
    return function
