"""The plain mirror with the same bits for an utterance in every batch, on any number of threads.

The same sum in another order differs in its last bits, and Griffin-Lim makes another wave of
that. The engine in C++ adds up row by row; matrix products of PyTorch choose their order by the
number of rows, attention by the padding. So here each text is encoded and refined by itself, on
one thread, and a step never takes fewer than ``MIN_ROWS`` rows: from four on, or from sixteen on
processors with AMX, every row of a product is one and the same sum (a test holds that for this
machine's library).

Shapes: B batch, S symbols, T mel frames, M mel channels, K head width, H heads.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.models.mirror import Mirror
from profforce.models.mirror_state import MirrorState, StepOutput
from profforce.models.tts import TTSModel
from profforce.nn.attention import Memory
from profforce.nn.noise import PrenetNoise

MIN_ROWS = 16


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch inside, for this thread; as many as before afterwards."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _OneByOne(TTSModel):
    """A view of a model, on the same modules and parameters, that takes texts one by one."""

    def encode(
        self, symbols: Tensor, symbol_lengths: Tensor, speakers: Tensor | None = None
    ) -> list[Memory]:
        """See :class:`TTSModel`; what pads is zero."""
        rows = []
        with one_thread():
            for number, length in enumerate(symbol_lengths.tolist()):
                row = slice(number, number + 1)
                who = None if speakers is None else speakers[row]
                rows.append(super().encode(symbols[row, :length], symbol_lengths[row], who))
        return [_padded(layer, symbols.shape[1]) for layer in zip(*rows, strict=True)]

    def refine(self, before: Tensor, mask: Tensor) -> Tensor:
        """See :class:`TTSModel`."""
        after = before.clone()
        with one_thread():
            for number, length in enumerate(mask.sum(1).tolist()):
                here = slice(number, number + 1), slice(length)
                after[here] = super().refine(before[here], mask[here])
        return after


def _one_by_one(kind: type[TTSModel]) -> type[TTSModel]:
    """``kind`` with the methods of :class:`_OneByOne` before its own."""
    return type(f"OneByOne{kind.__name__}", (_OneByOne, kind), {})


def _padded(rows: tuple[Memory, ...], length: int) -> Memory:
    """One memory of ``length`` symbols from those of single texts."""

    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, length - x.shape[2]))

    return Memory(
        torch.cat([pad(row.k) for row in rows]),
        torch.cat([pad(row.v) for row in rows]),
        torch.cat([F.pad(row.mask, (0, length - row.mask.shape[-1])) for row in rows]),
    )


@dataclass(frozen=True)
class _Filled(MirrorState):
    """A state of at least ``MIN_ROWS`` rows, of which the first ``live`` ones count."""

    live: int = 0

    def select(self, rows: Tensor) -> "_Filled":
        """See :class:`MirrorState`."""
        selected = super().select(_filled(rows))
        assert isinstance(selected, _Filled)
        return replace(selected, live=len(rows))


def _filled(rows: Tensor) -> Tensor:
    """``rows [N]`` and, if they are too few, the first of them again."""
    missing = MIN_ROWS - len(rows)
    return torch.cat([rows, rows[:1].expand(missing)]) if missing > 0 and len(rows) else rows


class SteadyMirror(Mirror):
    """A mirror that gives an utterance the same bits in every batch.

    Every text has a symbol or more, and all batches are padded to the same number of symbols.
    """

    def __init__(self, model: TTSModel) -> None:
        view = copy.copy(model)
        view.__class__ = _one_by_one(type(model))
        super().__init__(view)

    def start(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_steps: int,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
    ) -> MirrorState:
        """See :class:`Mirror`."""
        state = super().start(symbols, symbol_lengths, max_steps, noise=noise, speakers=speakers)
        rows = torch.arange(len(symbols), device=symbols.device)
        whole = {field.name: getattr(state, field.name) for field in fields(state)}
        return _Filled(**whole, live=len(rows)).select(rows)

    def step(self, state: MirrorState) -> tuple[StepOutput, MirrorState]:
        """See :class:`Mirror`."""
        output, after = super().step(state)
        if not isinstance(state, _Filled):
            return output, after
        live = {field.name: getattr(output, field.name)[: state.live] for field in fields(output)}
        return StepOutput(**live), after
