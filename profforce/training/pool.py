"""The sample pool: utterances that the model made by itself, a little stale.

Refreshed every N optimizer steps with G utterances by the mirror; when to do so depends on the step
number alone. Drawn without replacement. A refresh may begin some steps before its need, from the
weights of that moment: what is drawn when depends on step numbers, never on how long it took.

Shapes: B batch, S symbols, T mel frames, M mel channels.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from profforce.data.batch import Batch, collate
from profforce.models.mirror import Mirror
from profforce.nn.noise import PrenetNoise
from profforce.training.imitation import Expert
from profforce.training.recital import MIB, Recital, Samples
from profforce.training.seeds import generator


@dataclass(frozen=True)
class PoolBatch:
    """Generated utterances as targets of a teacher-forced pass."""

    batch: Batch
    """Texts with *generated* mels ``[B, T, M]``: the frames that were fed back."""
    noise: PrenetNoise
    """The prenet's noise of the free run: with it the pass repeats the model's behaviour, but for
    what ``freerun.weight_noise`` did to the weights then."""
    expert: Expert | None = None
    """What should have followed, if the pool was made to imitate."""


class SamplePool:
    """G generated utterances, each with its age and whether it stopped by itself."""

    def __init__(self, recital: Recital) -> None:
        """A pool that is empty yet, of what ``recital`` makes."""
        self.recital = recital
        self.config = recital.config
        self.samples = Samples()
        self.draws = 0
        self._pending: Future[Samples] | None = None
        """This process's part of what was begun ahead of its need."""
        self._ahead: Samples | None = None
        """All of it, once it was waited for."""
        self._worker: ThreadPoolExecutor | None = None

    def is_due(self, step: int, start_step: int) -> bool:
        """Whether the pool has to be refreshed before ``step``."""
        return step >= start_step and (step - start_step) % self.config.every == 0

    def refresh(self, mirror: Mirror, step: int, device: torch.device) -> None:
        """Let the model speak G texts by itself, now."""
        self._take(self.recital.joined(self.recital.part(mirror, step, step, device)))

    def begin(self, mirror: Mirror, step: int, device: torch.device) -> None:
        """Begin at ``step`` what :meth:`advance` takes over ``ahead`` steps later."""
        due = step + self.config.ahead
        if device.type == "cpu":
            twin = Mirror(copy.deepcopy(mirror.model))  # the weights as they are now
            self._worker = self._worker or ThreadPoolExecutor(1, "profforce-pool")
            self._pending = self._worker.submit(self.recital.part, twin, step, due, device)
        else:  # one queue of work a device: nothing would run beside the training
            self._pending = Future()
            self._pending.set_result(self.recital.part(mirror, step, due, device))

    def advance(self, mirror: Mirror, step: int, start_step: int, device: torch.device) -> bool:
        """Do what has to be done before ``step``; whether the pool is new."""
        new = False
        if step >= start_step and (self.is_due(step, start_step) or not self._serves(self.samples)):
            made, self._ahead = self._ready(), None
            if made is not None and made.due == step and self._serves(made):
                self._take(made)
            else:
                self.refresh(mirror, step, device)
            new = True
        if self.config.ahead and self.is_due(step + self.config.ahead, start_step):
            self.begin(mirror, step, device)
        return new

    def draw(self, size: int, device: torch.device, *, max_frames: int | None = None) -> PoolBatch:
        """A batch of what :meth:`choose` draws."""
        return self.batch(self.choose(size, max_frames), device)

    def choose(self, size: int, max_frames: int | None = None) -> list[int]:
        """Draw the next ``size`` utterances (at most G), shuffled anew when all were drawn.

        With ``max_frames`` as many of them, at least one, as stay within it with their padding.
        """
        samples = self.samples
        size = min(size, len(samples.mels))
        rows = [self._row(self.draws + i) for i in range(size)]
        if max_frames is not None:
            rows = rows[: fitting([len(samples.mels[row]) for row in rows], max_frames)]
        self.draws += len(rows)
        return rows

    def num_frames(self, rows: list[int]) -> npt.NDArray[np.int64]:
        """``[G']``, mel frames of these utterances."""
        return np.array([len(self.samples.mels[row]) for row in rows], dtype=np.int64)

    def batch(self, rows: list[int], device: torch.device) -> PoolBatch:
        """These utterances of the pool."""
        samples = self.samples
        items = [self.recital.item(samples, row, samples.mels[row]) for row in rows]
        noise = self.recital.noise(samples.due, torch.tensor(rows, device=device))
        return PoolBatch(collate(items).to(device), noise, self._expert(rows, device))

    def _expert(self, rows: list[int], device: torch.device) -> Expert | None:
        samples = self.samples
        if not samples.next_frames:
            return None
        real = collate([self.recital.item(samples, row) for row in rows]).to(device)
        following = pad_sequence([samples.next_frames[row] for row in rows], batch_first=True)
        return Expert(real, following.to(device))

    def summary(self, step: int) -> dict[str, float]:
        """What is logged under ``pool/``."""
        samples = self.samples
        frames = sum(len(mel) for mel in samples.mels)
        spliced = sum(found is not None for found in samples.splices)
        return {
            "pool/age_steps": float(step - samples.made_at),
            "pool/size": float(len(samples.mels)),
            "pool/stopped_fraction": sum(samples.stopped) / max(len(samples.stopped), 1),
            "pool/length_ratio": frames / max(self.recital.num_recorded(samples), 1),
            "pool/spliced_fraction": spliced / max(len(samples.mels), 1),
            "pool/memory_mib": sum(mel.numel() * 4 for mel in samples.mels) / MIB,
            "pool/workspace_mib": samples.workspace_mib,
        }

    def state_dict(self) -> dict[str, object]:
        """Everything a resume needs, what is under way included; for ``weights_only=True``."""
        ready = self._ready()
        pending = None if ready is None else ready.stored()
        return {"draws": self.draws, "samples": self.samples.stored(), "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.draws = state["draws"]
        self.samples = Samples.restored(state["samples"])
        self._pending = None
        pending = state["pending"]
        self._ahead = None if pending is None else Samples.restored(pending)

    def _serves(self, samples: Samples) -> bool:
        """Whether there is what a step needs: settings may have changed since they were made."""
        return bool(samples.mels) and (not self.recital.imitates or bool(samples.next_frames))

    def _take(self, samples: Samples) -> None:
        self.samples, self.draws = samples, 0

    def _ready(self) -> Samples | None:
        """What was begun, when all have made their parts of it."""
        if self._pending is not None:
            self._ahead, self._pending = self.recital.joined(self._pending.result()), None
        return self._ahead

    def _row(self, draw: int) -> int:
        lap, place = divmod(draw, len(self.samples.mels))
        source = generator(self.recital.seed, f"draw-{self.samples.due}", lap)
        return int(torch.randperm(len(self.samples.mels), generator=source)[place])


def fitting(lengths: Sequence[float], max_frames: int) -> int:
    """How many of the first ``lengths``, padded to the longest of them, fit; at least one."""
    longest = 0.0
    for count, length in enumerate(lengths):
        longest = max(longest, length)
        if count and (count + 1) * longest > max_frames:
            return count
    return len(lengths)
