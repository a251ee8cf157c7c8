"""The sample pool: utterances that the model made by itself, a little stale.

Refreshed every N optimizer steps with G utterances by the mirror; when to do so depends on the step
number alone. Drawn without replacement. A refresh may begin some steps before its need, from the
weights of that moment: what is drawn when depends on step numbers, never on how long it took.

Shapes: B batch, S symbols, T mel frames, M mel channels.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from profforce.config import FreerunConfig
from profforce.data.batch import Batch, collate
from profforce.data.dataset import MelDataset
from profforce.models.free_run import workspace_bytes
from profforce.models.mirror import Mirror, resolve_precision
from profforce.models.tts import TTSModel
from profforce.nn.noise import PrenetNoise
from profforce.training.distributed import ALONE, Team
from profforce.training.imitation import Expert, next_frames
from profforce.training.seeds import derived_seed, generator

log = logging.getLogger(__name__)
MIB = 2**20


@dataclass(frozen=True)
class PoolBatch:
    """Generated utterances as targets of a teacher-forced pass."""

    batch: Batch
    """Texts of the corpus with *generated* mels ``[B, T, M]``: the frames that were fed back."""
    noise: PrenetNoise
    """The prenet's noise of the free run, so that the pass repeats its behaviour."""
    expert: Expert | None = None
    """What should have followed, if the pool was made to imitate."""


@dataclass(frozen=True)
class Samples:
    """What one refresh makes."""

    made_at: int = -1
    """Step whose weights spoke; -1 before the first refresh."""
    due: int = -1
    """Step from which on these are drawn; seeds the choice, the noise and the order."""
    indices: list[int] = field(default_factory=list)
    """Utterances of the corpus."""
    mels: list[Tensor] = field(default_factory=list)
    """``[T, M]`` each, on the CPU."""
    stopped: list[bool] = field(default_factory=list)
    """Whether the stop head ended it."""
    next_frames: list[Tensor] = field(default_factory=list)
    """``[U]`` each, where an expert would go on; none without imitation."""
    workspace_mib: float = 0.0
    """Most memory that was held to generate them, as estimated."""


class SamplePool:
    """G generated utterances, each with its age and whether it stopped by itself."""

    def __init__(
        self,
        config: FreerunConfig,
        dataset: MelDataset,
        seed: int,
        *,
        imitates: bool = False,
        team: Team = ALONE,
    ) -> None:
        """A pool that is empty yet.

        Args:
            config: its sizes and how it is made.
            dataset: texts to say.
            seed: of choice, noise and order.
            imitates: lay the recordings on the samples, for an expert's word on them.
            team: each process makes a part, and all get the whole.
        """
        self.team = team
        self.config = config
        self.imitates = imitates
        self.dataset = dataset
        self.seed = seed
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
        """Let the model speak G texts of the corpus by itself, now."""
        self._take(self._joined(self._generate(mirror, step, step, device)))

    def begin(self, mirror: Mirror, step: int, device: torch.device) -> None:
        """Begin at ``step`` what :meth:`advance` takes over ``ahead`` steps later."""
        due = step + self.config.ahead
        if device.type == "cpu":
            twin = Mirror(copy.deepcopy(mirror.model))  # the weights as they are now
            self._worker = self._worker or ThreadPoolExecutor(1, "profforce-pool")
            self._pending = self._worker.submit(self._generate, twin, step, due, device)
        else:  # one queue of work a device: nothing would run beside the training
            self._pending = Future()
            self._pending.set_result(self._generate(mirror, step, due, device))

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
        items = [self.dataset.item(samples.indices[row], samples.mels[row]) for row in rows]
        noise = self._noise(samples.due, torch.tensor(rows, device=device))
        return PoolBatch(collate(items).to(device), noise, self._expert(rows, device))

    def _expert(self, rows: list[int], device: torch.device) -> Expert | None:
        samples = self.samples
        if not samples.next_frames:
            return None
        real = collate([self.dataset[samples.indices[row]] for row in rows]).to(device)
        following = pad_sequence([samples.next_frames[row] for row in rows], batch_first=True)
        return Expert(real, following.to(device))

    def summary(self, step: int) -> dict[str, float]:
        """What is logged under ``pool/``."""
        samples = self.samples
        frames = sum(len(mel) for mel in samples.mels)
        real = sum(int(self.dataset.num_frames[i]) for i in samples.indices)
        return {
            "pool/age_steps": float(step - samples.made_at),
            "pool/size": float(len(samples.mels)),
            "pool/stopped_fraction": sum(samples.stopped) / max(len(samples.stopped), 1),
            "pool/length_ratio": frames / max(real, 1),
            "pool/memory_mib": sum(mel.numel() * 4 for mel in samples.mels) / MIB,
            "pool/workspace_mib": samples.workspace_mib,
        }

    def state_dict(self) -> dict[str, object]:
        """Everything a resume needs, what is under way included; for ``weights_only=True``."""
        ready = self._ready()
        pending = None if ready is None else dict(vars(ready))
        return {"draws": self.draws, "samples": dict(vars(self.samples)), "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.draws = state["draws"]
        self.samples = Samples(**state["samples"])
        self._pending = None
        self._ahead = None if state["pending"] is None else Samples(**state["pending"])

    def _serves(self, samples: Samples) -> bool:
        """Whether there is what a step needs: settings may have changed since they were made."""
        return bool(samples.mels) and (not self.imitates or bool(samples.next_frames))

    def _take(self, samples: Samples) -> None:
        self.samples, self.draws = samples, 0

    def _generate(self, mirror: Mirror, step: int, due: int, device: torch.device) -> Samples:
        """Speak what is due at step ``due`` with the weights as they are at ``step``."""
        indices = self._choose(due)
        texts = self.dataset.texts(indices)
        real = torch.from_numpy(self.dataset.num_frames[indices])
        limit = (real * self.config.max_length_ratio).ceil().long().clamp(min=1)
        held = workspace_bytes(mirror.model, texts.symbol_lengths, limit) / MIB
        precision = resolve_precision(self.config.precision, mirror.model)
        mine = limit.argsort(stable=True)[self.team.rank :: self.team.size]
        mels: list[Tensor] = [torch.empty(0)] * len(indices)
        stopped = [False] * len(indices)
        most = 0.0
        for rows in _within(mine, held, self.config.max_memory_mib):
            longest = int(texts.symbol_lengths[rows].max())
            run = mirror.free_run(
                texts.symbols[rows, :longest].to(device),
                texts.symbol_lengths[rows].to(device),
                limit[rows].to(device),
                noise=self._noise(due, rows.to(device)),
                speakers=texts.speakers[rows].to(device),
                stop_threshold=self.config.stop_threshold,
                refine=False,
                alignments=False,
                precision=precision,
            )
            lengths, by_head = run.lengths.tolist(), run.stopped.tolist()
            for place, (row, mel) in enumerate(
                zip(rows.tolist(), run.mel_before.cpu(), strict=True)
            ):
                mels[row], stopped[row] = mel[: lengths[place]].clone(), by_head[place]
            most = max(most, float(held[rows].sum()))
        following = self._lay_recordings(mirror.model, indices, mels) if self.imitates else []
        return Samples(step, due, indices, mels, stopped, following, most)

    def _lay_recordings(
        self, model: TTSModel, indices: list[int], mels: list[Tensor]
    ) -> list[Tensor]:
        mean, std = model.mel_mean.cpu(), model.mel_std.cpu()
        factor = model.config.reduction_factor
        return [
            next_frames((made - mean) / std, (self.dataset[index].mel - mean) / std, factor)
            if len(made)
            else made  # of another process
            for index, made in zip(indices, mels, strict=True)
        ]

    def _ready(self) -> Samples | None:
        """What was begun, when all have made their parts of it."""
        if self._pending is not None:
            self._ahead, self._pending = self._joined(self._pending.result()), None
        return self._ahead

    def _joined(self, part: Samples) -> Samples:
        """The whole of what each process has made a part of; a mel has at least one frame."""
        parts = self.team.gathered("the sample pool", part)
        if len(parts) == 1:
            return part
        whose = [
            next(k for k, other in enumerate(parts) if len(other.mels[row]))
            for row in range(len(part.mels))
        ]
        rows = list(enumerate(whose))
        return replace(
            part,
            mels=[parts[k].mels[row] for row, k in rows],
            stopped=[parts[k].stopped[row] for row, k in rows],
            next_frames=[parts[k].next_frames[row] for row, k in rows] if self.imitates else [],
            workspace_mib=max(other.workspace_mib for other in parts),
        )

    def _choose(self, due: int) -> list[int]:
        """G indices without replacement; more than the corpus has start over."""
        source = generator(self.seed, "pool", due)
        chosen: list[int] = []
        while len(chosen) < self.config.pool_size:
            order = torch.randperm(len(self.dataset), generator=source)
            chosen += order[: self.config.pool_size - len(chosen)].tolist()
        return chosen

    def _row(self, draw: int) -> int:
        lap, place = divmod(draw, len(self.samples.mels))
        source = generator(self.seed, f"draw-{self.samples.due}", lap)
        return int(torch.randperm(len(self.samples.mels), generator=source)[place])

    def _noise(self, due: int, rows: Tensor) -> PrenetNoise:
        return PrenetNoise(derived_seed(self.seed, "pool-noise", due), rows)


def fitting(lengths: Sequence[float], max_frames: int) -> int:
    """How many of the first ``lengths``, padded to the longest of them, fit; at least one."""
    longest = 0.0
    for count, length in enumerate(lengths):
        longest = max(longest, length)
        if count and (count + 1) * longest > max_frames:
            return count
    return len(lengths)


def _within(rows: Tensor, held: Tensor, budget: float) -> Iterator[Tensor]:
    """``rows`` in parts, each within ``budget`` of what is ``held`` for them, or of one row."""
    part: list[int] = []
    total = 0.0
    for row in rows.tolist():
        if part and total + float(held[row]) > budget:
            yield torch.tensor(part)
            part, total = [], 0.0
        part.append(row)
        total += float(held[row])
    if part:
        yield torch.tensor(part)
