"""The CUDA graphs of a model, kept from run to run.

A graph holds addresses. Parameters that are updated in place are read as they are; when their
storage or a module is another one, everything is captured anew.

Shapes: N steps of a graph.
"""

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from profforce.models.graph_room import Decoder, Room, Size
from profforce.models.transformer import TransformerTTS
from profforce.nn.modes import evaluating

MIN_ROWS = 8
"""Rows of the smallest graph: fewer would not be faster, since weights are read for one as well."""
WARM_UP_STEPS = 3
MOST_SPARE = 4
"""How many times the places that a run needs a cache may have: all are read in every step."""


class CaptureError(RuntimeError):
    """The device or a layer refuses to be captured; the message says why, in one line."""


class Machine:
    """A room for a model, and the graphs over its first rows."""

    def __init__(self, model: TransformerTTS, size: Size, *, noisy: bool, precision: str) -> None:
        self.size, self.dropout = size, model.prenet.dropout
        self.made_of = _storage_of(model)
        self.decoder, dtype = Decoder(model), model.mel_out.weight.dtype
        self._is_copy = precision == "bfloat16"
        if self._is_copy:
            self.decoder, dtype = _with_small_weights(self.decoder), torch.bfloat16
        with torch.inference_mode(False):  # or nothing could be written to it outside of that
            self.room = Room.allocate(self.decoder, size, dtype, noisy=noisy)
        self._replays: dict[int, Callable[[], None]] = {}

    def fits(self, model: TransformerTTS, need: Size) -> bool:
        """Whether it serves the model as it is now, for a run of that size."""
        old = self.size
        enough = old.rows >= need.rows and old.symbols >= need.symbols
        spare = need.places <= old.places <= MOST_SPARE * need.places
        same = self.dropout == model.prenet.dropout and self.made_of == _storage_of(model)
        return enough and spare and same

    def refresh(self, model: TransformerTTS) -> None:
        """Take over the weights as they are now, where they are a copy."""
        if self._is_copy:
            live = Decoder(model)
            for mine, theirs in zip(_held(self.decoder), _held(live), strict=True):
                mine.copy_(theirs)

    def replay(self, rows: int) -> None:
        """N steps of the first ``rows`` rows.

        Raises:
            CaptureError: if the steps cannot be captured.
        """
        size = bucket(rows)
        if size not in self._replays:
            self._replays[size] = self._make(size)
        self._replays[size]()

    def _make(self, rows: int) -> Callable[[], None]:
        room = self.room.part(rows)
        capture = _capture if room.t.device.type == "cuda" else _rehearse
        with torch.inference_mode(False):
            return capture(
                functools.partial(self._run, room.clone(), min(WARM_UP_STEPS, room.num_steps)),
                functools.partial(self._run, room, room.num_steps),
                room.t.device,
            )

    def _run(self, room: Room, steps: int) -> None:
        device = room.t.device.type
        lowered = torch.autocast(
            device, dtype=torch.bfloat16, enabled=self._is_copy, cache_enabled=False
        )
        with evaluating(self.decoder), torch.no_grad(), lowered:
            for place in range(steps):
                room.step(self.decoder, place)


def _rehearse(
    warm_up: Callable[[], None], work: Callable[[], None], device: torch.device
) -> Callable[[], None]:
    """What :func:`_capture` does, for a device that has no graphs: ``work`` is done every time."""
    warm_up()
    return work


def _capture(
    warm_up: Callable[[], None], work: Callable[[], None], device: torch.device
) -> Callable[[], None]:
    """A graph of ``work`` to replay, after ``warm_up``, which loads and chooses every kernel.

    Raises:
        CaptureError: if the device refuses.
    """
    graph = torch.cuda.CUDAGraph()
    here, side = torch.cuda.current_stream(device), _side_stream(device)
    # The outer stream context is for a capture that fails: it would leave the side stream current.
    with torch.cuda.device(device), torch.cuda.stream(here), _no_collection():
        side.wait_stream(here)
        with torch.cuda.stream(side):
            warm_up()
        here.wait_stream(side)
        try:
            # Other threads may go on, such as one that pins memory for a loader.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                work()
        except RuntimeError as err:
            first = err.__context__ or err  # the end of a spoilt capture is a second error
            reason = " ".join(str(first).split())[:200]
            raise CaptureError(f"its steps cannot be captured: {reason}") from err
    return graph.replay


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The same for every capture: cuBLAS keeps a workspace for each stream it saw."""
    return torch.cuda.Stream(device)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside: a graph that is destroyed would spoil the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def bucket(rows: int) -> int:
    """Rows of the graph that runs so many: a power of two."""
    return max(MIN_ROWS, 1 << (rows - 1).bit_length())


_MACHINES: "weakref.WeakKeyDictionary[nn.Module, dict[tuple[str, bool, int], Machine]]"
_MACHINES = weakref.WeakKeyDictionary()
"""Kept from run to run; apart from the model, so that they are in no copy and no file of it."""


def machine_for(model: TransformerTTS, need: Size, *, noisy: bool, precision: str) -> Machine:
    """One that fits, kept or new; its size never shrinks, so that sizes in turn share it."""
    kept = _MACHINES.setdefault(model, {})
    key = (precision, noisy, need.steps)
    if key not in kept or not kept[key].fits(model, need):
        if (old := kept.pop(key, None)) is not None:
            need = replace(
                need,
                rows=max(old.size.rows, need.rows),
                symbols=max(old.size.symbols, need.symbols),
            )
        del old  # its memory goes before the new one's is asked for
        kept[key] = Machine(model, need, noisy=noisy, precision=precision)
    kept[key].refresh(model)
    return kept[key]


def _storage_of(model: TransformerTTS) -> tuple[Any, ...]:
    """What a graph holds fast: the modules, and where and how their tensors lie."""
    decoder = Decoder(model)
    places = ((x.data_ptr(), x.shape, x.stride(), x.dtype, x.device) for x in _held(decoder))
    return (*list(decoder.modules())[1:], *places)


def _held(decoder: Decoder) -> list[Tensor]:
    return [*decoder.parameters(), *decoder.buffers()]


def _with_small_weights(decoder: Decoder) -> Decoder:
    """A copy whose matrices are bfloat16, but for those that make the frames."""
    twin = copy.deepcopy(decoder).requires_grad_(False)
    for module in twin.modules():
        if isinstance(module, nn.Linear) and module not in (twin.mel_out, twin.stop_out):
            module.to(torch.bfloat16)
    return twin
