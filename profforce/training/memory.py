"""A step that the memory does not hold: done once more in halves, whose gradients add up to it."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path

import torch
from torch import Tensor

from profforce.data.batch import Batch
from profforce.errors import UserError
from profforce.runs import holds_run
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
                remedy=f"{self._way_on()} a trainer.max_frames, a lower trainer.batch_size or "
                "data.max_seconds, or trainer.recompute_activations=true",
            )
        return found

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say in one line that memory failed elsewhere: in free runs, readings, the optimizer.

        Raises:
            OutOfRoomError: in place of PyTorch's own error.
        """
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfRoomError(
                "the memory does not hold what comes beside the batches of a step",
                where=f"step {self.state.step + 1} of {self.run_dir}",
                got=_first_line(error),
                remedy=f"{self._way_on(saved=False)} a lower freerun.max_memory_mib, "
                "freerun.pool_size or trainer.num_eval_sentences, or a smaller model",
            ) from error

    def halved_by_all(self) -> int:
        """Steps done in halves so far, in any process; all have to ask."""
        count = torch.tensor([float(self.halved_steps)])
        return int(self.state.team.summed(count, "how many steps they did in halves"))

    def _way_on(self, *, saved: bool = True) -> str:
        """How to go on; ``saved``: one process saves its state at such an end."""
        if saved and self.state.team.size == 1:
            return "the state is saved: go on with --resume and"
        if holds_run(self.run_dir):
            return "go on from the last checkpoint with --resume and"
        return "begin again with"

    def _tried(
        self, work: Sequence[Work], gradients: Gradients
    ) -> tuple[list[dict[str, Tensor]], str | None]:
        try:
            return [gradients(batch, part) for part, batch in work], None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            problem = _first_line(error)
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


def _first_line(error: RuntimeError) -> str:
    return str(error).splitlines()[0].rstrip(".")


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


def peak_memory_mib() -> float:
    """Largest resident size of this process so far; 0 where the system does not tell."""
    try:
        import resource
        import sys
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)
