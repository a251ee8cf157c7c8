"""A step that the memory does not hold: done once more in halves, whose gradients add up to it."""

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import torch
from torch import Tensor

from profforce.data.batch import Batch
from profforce.errors import UserError
from profforce.training.plan import Part, counts_of
from profforce.training.shares import Shares, divided
from profforce.training.state import TrainState

log = logging.getLogger(__name__)

Work = tuple[Part, Batch]
Gradients = Callable[[Batch, Part], dict[str, Tensor]]
"""Adds the gradients of a batch; returns its scalars."""


class OutOfRoomError(UserError):
    """Not even half a batch fits into memory."""

    exit_code = 1
    """The command line was right, the task failed."""


class Room:
    """Takes a step's batches, in halves where they do not fit; says so the first time."""

    def __init__(self, state: TrainState, run_dir: Path) -> None:
        self.state, self.run_dir = state, run_dir
        self.halved_steps = 0

    def gradients(self, work: Sequence[Work], gradients: Gradients) -> list[dict[str, Tensor]]:
        """The scalars of each batch, or half, of a step, whose gradients are added up.

        Raises:
            OutOfRoomError: if halves do not fit either; the gradients are then gone.
        """
        found, problem = self._tried(work, gradients)
        if problem is None:
            return found
        halves = [half for part, batch in work for half in halved(self.state, part, batch)]
        if len(halves) > len(work):
            self._tell(problem, max(len(batch) for _, batch in work))
            found, problem = self._tried(halves, gradients)
        if problem is not None:
            raise OutOfRoomError(
                "the memory does not hold half a batch",
                where=f"step {self.state.step + 1} of {self.run_dir}",
                got=problem,
                remedy=f"{'the state is saved: ' if self.state.team.size == 1 else ''}go on with "
                "--resume and a trainer.max_frames, a lower trainer.batch_size or "
                "data.max_seconds, or trainer.recompute_activations=true",
            )
        return found

    def _tried(
        self, work: Sequence[Work], gradients: Gradients
    ) -> tuple[list[dict[str, Tensor]], str | None]:
        try:
            return [gradients(batch, part) for part, batch in work], None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            problem = str(error).splitlines()[0]
        # beyond the except clause: the error holds the frames, and they the activations
        self.state.optimizer.zero_grad()
        self.state.judge_optimizer.zero_grad()
        gc.collect()
        if self.state.device.type == "cuda":
            torch.cuda.empty_cache()
        return [], problem

    def _tell(self, problem: str, size: int) -> None:
        self.halved_steps += 1
        if self.halved_steps == 1:
            log.warning(
                "step %d: out of memory with %d utterances (%s); it is done in halves, as others "
                "will be that do not fit; a trainer.max_frames would keep them from coming",
                *(self.state.step + 1, size, problem),
            )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on any device."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def halved(state: TrainState, part: Part, batch: Batch) -> list[Work]:
    """A batch in two, the longer utterances first, with the shares that either has; or as it is."""
    if len(batch) < 2:
        return [(part, batch)]
    order = batch.mel_lengths.argsort(descending=True, stable=True)
    batches = [batch.rows(rows) for rows in order.tensor_split(2)]
    middle = -(-len(part.free) // 2)
    free = [part.free[:middle], part.free[middle:]]
    counts = [
        counts_of(state, half.indices.tolist(), said)
        for half, said in zip(batches, free, strict=True)
    ]
    parts = [
        replace(part, free=said, shares=_times(part.shares, share))
        for said, share in zip(free, divided(counts), strict=True)
    ]
    return list(zip(parts, batches, strict=True))


def _times(whole: Shares, share: Shares) -> Shares:
    return Shares(*(a * b for a, b in zip(astuple(whole), astuple(share), strict=True)))
