"""The sample pool: utterances that the model made by itself, a little stale.

Refreshed every N optimizer steps with G utterances in one large batch by the mirror; when to do
so depends on the step number alone. Drawn without replacement.

Shapes: B batch, S symbols, T mel frames, M mel channels.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from profforce.config import FreerunConfig
from profforce.data.batch import Batch, collate
from profforce.data.dataset import MelDataset
from profforce.models.free_run import FreeRun
from profforce.models.mirror import Mirror
from profforce.nn.noise import PrenetNoise
from profforce.training.seeds import derived_seed, generator


@dataclass(frozen=True)
class PoolBatch:
    """Generated utterances as targets of a teacher-forced pass."""

    batch: Batch
    """Texts of the corpus with *generated* mels ``[B, T, M]``: the frames that were fed back."""
    noise: PrenetNoise
    """The prenet's noise of the free run, so that the pass repeats its behaviour."""


class SamplePool:
    """G generated utterances, each with its age and whether it stopped by itself."""

    def __init__(self, config: FreerunConfig, dataset: MelDataset, seed: int) -> None:
        self.config = config
        self.dataset = dataset
        self.seed = seed
        self.made_at = -1
        """Step of the last refresh; -1 before the first."""
        self.draws = 0
        self.indices: list[int] = []
        self.mels: list[Tensor] = []
        self.stopped: list[bool] = []

    def is_due(self, step: int, start_step: int) -> bool:
        """Whether the pool has to be refreshed before ``step``."""
        return step >= start_step and (step - start_step) % self.config.every == 0

    def refresh(self, mirror: Mirror, step: int, device: torch.device) -> FreeRun:
        """Let the model speak G texts of the corpus by itself."""
        self.indices = self._choose(step)
        batch = collate([self.dataset[i] for i in self.indices]).to(device)
        ratio = self.config.max_length_ratio
        run = mirror.free_run(
            batch.symbols,
            batch.symbol_lengths,
            (batch.mel_lengths * ratio).ceil().long().clamp(min=1),
            noise=self._noise(step, torch.arange(len(self.indices), device=device)),
            speakers=batch.speakers,
            stop_threshold=self.config.stop_threshold,
            refine=False,
            alignments=False,
        )
        lengths = run.lengths.tolist()
        self.mels = [mel[:n].cpu().clone() for mel, n in zip(run.mel_before, lengths, strict=True)]
        self.stopped = run.stopped.tolist()
        self.made_at, self.draws = step, 0
        return run

    def draw(self, size: int, device: torch.device) -> PoolBatch:
        """The next ``size`` utterances (at most G), shuffled anew when all were drawn."""
        size = min(size, len(self.mels))
        rows = [self._row(self.draws + i) for i in range(size)]
        self.draws += size
        items = [replace(self.dataset[self.indices[row]], mel=self.mels[row]) for row in rows]
        noise = self._noise(self.made_at, torch.tensor(rows, device=device))
        return PoolBatch(collate(items).to(device), noise)

    def summary(self, step: int) -> dict[str, float]:
        """What is logged under ``pool/``."""
        frames = [len(mel) for mel in self.mels]
        real = [int(self.dataset.num_frames[i]) for i in self.indices]
        return {
            "pool/age_steps": float(step - self.made_at),
            "pool/size": float(len(self.mels)),
            "pool/stopped_fraction": sum(self.stopped) / max(len(self.stopped), 1),
            "pool/length_ratio": sum(frames) / max(sum(real), 1),
            "pool/memory_mib": sum(mel.numel() * 4 for mel in self.mels) / 2**20,
        }

    def state_dict(self) -> dict[str, object]:
        """Everything a resume needs; loadable with ``weights_only=True``."""
        return {
            "made_at": self.made_at,
            "draws": self.draws,
            "indices": list(self.indices),
            "stopped": list(self.stopped),
            "mels": list(self.mels),
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name in ("made_at", "draws", "indices", "stopped", "mels"):
            setattr(self, name, state[name])

    def _choose(self, step: int) -> list[int]:
        """G indices without replacement; more than the corpus has start over."""
        source = generator(self.seed, "pool", step)
        chosen: list[int] = []
        while len(chosen) < self.config.pool_size:
            chosen += torch.randperm(len(self.dataset), generator=source).tolist()
        return chosen[: self.config.pool_size]

    def _row(self, draw: int) -> int:
        lap, place = divmod(draw, len(self.mels))
        source = generator(self.seed, f"draw-{self.made_at}", lap)
        return int(torch.randperm(len(self.mels), generator=source)[place])

    def _noise(self, step: int, rows: Tensor) -> PrenetNoise:
        return PrenetNoise(derived_seed(self.seed, "pool-noise", step), rows)
