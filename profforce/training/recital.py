"""What a refresh of the pool makes: texts chosen, spoken by the mirror, laid on recordings.

Shapes: B batch, S symbols, T mel frames, M mel channels, U decoder steps.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from profforce.config import FreerunConfig
from profforce.data.batch import Item, collate_texts
from profforce.data.dataset import MelDataset
from profforce.errors import UserError
from profforce.models.free_run import workspace_bytes
from profforce.models.mirror import Mirror, resolve_precision
from profforce.models.tts import TTSModel
from profforce.nn.noise import PrenetNoise
from profforce.training.distributed import ALONE, Team
from profforce.training.exploring import Explorer
from profforce.training.imitation import next_frames
from profforce.training.seeds import derived_seed, generator
from profforce.training.splicing import Splice, join, partners, splice, spliced, words_of

log = logging.getLogger(__name__)
MIB = 2**20
NO_MEL = torch.empty(0, 0)


@dataclass(frozen=True)
class Samples:
    """What one refresh makes."""

    made_at: int = -1
    """Step whose weights spoke; -1 before the first refresh."""
    due: int = -1
    """Step from which on these are drawn; seeds the choice, the noise and the order."""
    indices: list[int] = field(default_factory=list)
    """Utterances of the corpus; of a splice the first."""
    splices: list[Splice | None] = field(default_factory=list)
    """Of those that are no utterance of the corpus; none at all where nothing is spliced."""
    mels: list[Tensor] = field(default_factory=list)
    """``[T, M]`` each, on the CPU."""
    stopped: list[bool] = field(default_factory=list)
    """Whether the stop head ended it."""
    next_frames: list[Tensor] = field(default_factory=list)
    """``[U]`` each, where an expert would go on; none without imitation."""
    workspace_mib: float = 0.0
    """Most memory that was held to generate them, as estimated."""

    def splice_of(self, row: int) -> Splice | None:
        """What it is spliced of; None of an utterance of the corpus."""
        return self.splices[row] if self.splices else None

    def stored(self) -> dict[str, Any]:
        """For a checkpoint that is read with ``weights_only=True``."""
        return {**vars(self), "splices": [found and tuple(found) for found in self.splices]}

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> "Samples":
        """The inverse of :meth:`stored`, of older checkpoints too."""
        splices = [found and Splice(*found) for found in stored.get("splices", ())]
        return cls(**{**stored, "splices": splices})


class Recital:
    """Lets the model speak texts of a corpus, and says what should have been spoken."""

    def __init__(
        self,
        config: FreerunConfig,
        dataset: MelDataset,
        seed: int,
        *,
        gap: int | None = None,
        imitates: bool = False,
        team: Team = ALONE,
    ) -> None:
        """One for a training.

        Args:
            config: how many, and how they are made.
            dataset: texts to say.
            seed: of choice and noise.
            gap: symbol between words, at which texts are spliced.
            imitates: lay the recordings on the samples, for an expert's word on them.
            team: each process makes a part, and all get the whole.

        Raises:
            UserError: texts are to be spliced and no symbol parts words.
        """
        if (config.splice or config.join) and gap is None:
            raise UserError(
                "nothing parts the words of the texts, so that none can be spliced",
                where=f"freerun.splice={config.splice:g} freerun.join={config.join:g}",
                got="an alphabet without a space",
                remedy="set both to 0",
            )
        self.config = config
        self.dataset = dataset
        self.seed = seed
        self.gap = gap
        self.imitates = imitates
        self.team = team
        self.explorer = Explorer(config.weight_noise)
        self._told = False

    def part(self, mirror: Mirror, step: int, due: int, device: torch.device) -> Samples:
        """This process's part of what is due at step ``due``, with the weights of ``step``."""
        indices = self._choose(due)
        mine = torch.from_numpy(self.dataset.num_frames[indices]).argsort(stable=True)
        own = mine[self.team.rank :: self.team.size].tolist()
        model = mirror.model
        new = self.config.splice or self.config.join
        splices = self._splices(model, indices, own, due, device) if new else []
        made = Samples(
            step,
            due,
            indices,
            splices,
            mels=[torch.empty(0)] * len(indices),
            stopped=[False] * len(indices),
        )
        if self.config.weight_noise:
            seed = derived_seed(self.seed, "pool-weights", due)
            mirror = Mirror(self.explorer.twin_of(model, seed))
        made = self._spoken(mirror, made, own, device)
        return replace(made, next_frames=self._laid(model, made)) if self.imitates else made

    def item(self, samples: Samples, row: int, mel: Tensor | None = None) -> Item:
        """A sample's text with ``mel [T, M]``, its recording's when not given."""
        found = samples.splice_of(row)
        if found is not None:
            assert self.gap is not None
            return spliced(self.dataset, found, self.gap, mel)
        index = samples.indices[row]
        return self.dataset[index] if mel is None else self.dataset.item(index, mel)

    def num_recorded(self, samples: Samples) -> int:
        """Mel frames of all the recordings."""
        return sum(self._frames(samples, row) for row in range(len(samples.indices)))

    def noise(self, due: int, rows: Tensor) -> PrenetNoise:
        """The prenet's, of these rows ``[B']`` of what is due then."""
        return PrenetNoise(derived_seed(self.seed, "pool-noise", due), rows)

    def joined(self, part: Samples) -> Samples:
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
            splices=[parts[k].splices[row] for row, k in rows] if part.splices else [],
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

    def _splices(
        self, model: TTSModel, indices: list[int], own: list[int], due: int, device: torch.device
    ) -> list[Splice | None]:
        """Of the rows that are this process's ``own``; the first of each is what was chosen."""
        assert self.gap is not None
        source = generator(self.seed, "pool-partners", due)
        count = len(indices)
        order = torch.randperm(count, generator=source).tolist()
        others = partners([self.dataset.speaker(index) for index in indices], order)
        parted = [bool((self.dataset.symbols[index] == self.gap).any()) for index in indices]
        cut = round(self.config.splice * count)
        wanted = set(order[:cut])
        whole = set(order[cut : cut + round(self.config.join * count)])
        met = [
            (row, other)
            for row in sorted((wanted | whole) & set(own))
            if (other := others[row]) is not None and indices[row] != indices[other]
        ]
        pairs = [
            (row, other) for row, other in met if row in wanted and parted[row] and parted[other]
        ]
        if wanted and not any(parted) and not self._told:
            log.warning("no text of the pool has two words: nothing is spliced (freerun.splice)")
            self._told = True
        heard = sorted({row for pair in pairs for row in pair})
        items = [self.dataset[indices[row]] for row in heard]
        noise = self.noise(due, torch.tensor(heard, device=device))
        words = dict(zip(heard, words_of(model, items, self.gap, noise, device), strict=True))
        frames = self.dataset.num_frames
        longest = int(frames.max())
        found: list[Splice | None] = [None] * count
        for row, other in met:
            if row in whole:
                found[row] = join(self.dataset, indices[row], indices[other], longest)
        for row, other in pairs:
            found[row] = splice(
                (indices[row], words[row]),
                (indices[other], words[other], int(frames[indices[other]])),
                longest,
                generator(self.seed, f"splice-{due}", row),
            )
        return found

    def _spoken(
        self, mirror: Mirror, made: Samples, own: list[int], device: torch.device
    ) -> Samples:
        """With the frames that the mirror's model makes of the rows that are its ``own``."""
        if not own:
            return made
        texts = collate_texts([self.item(made, row, NO_MEL) for row in own])
        rows_of = torch.tensor(own)
        real = torch.tensor([self._frames(made, row) for row in own])
        limit = (real * self.config.max_length_ratio).ceil().long().clamp(min=1)
        held = workspace_bytes(mirror.model, texts.symbol_lengths, limit) / MIB
        precision = resolve_precision(self.config.precision, mirror.model)
        mels, stopped, most = list(made.mels), list(made.stopped), 0.0
        for places in _within(limit.argsort(stable=True), held, self.config.max_memory_mib):
            longest = int(texts.symbol_lengths[places].max())
            run = mirror.free_run(
                texts.symbols[places, :longest].to(device),
                texts.symbol_lengths[places].to(device),
                limit[places].to(device),
                noise=self.noise(made.due, rows_of[places].to(device)),
                speakers=texts.speakers[places].to(device),
                stop_threshold=self.config.stop_threshold,
                refine=False,
                alignments=False,
                precision=precision,
            )
            lengths, by_head = run.lengths.tolist(), run.stopped.tolist()
            rows = rows_of[places].tolist()
            for place, (row, mel) in enumerate(zip(rows, run.mel_before.cpu(), strict=True)):
                mels[row], stopped[row] = mel[: lengths[place]].clone(), by_head[place]
            most = max(most, float(held[places].sum()))
        return replace(made, mels=mels, stopped=stopped, workspace_mib=most)

    def _laid(self, model: TTSModel, made: Samples) -> list[Tensor]:
        """Where an expert would go on in each recording, of what this process made."""
        mean, std = model.mel_mean.cpu(), model.mel_std.cpu()
        factor = model.config.reduction_factor
        return [
            next_frames((mel - mean) / std, (self.item(made, row).mel - mean) / std, factor)
            if len(mel)
            else mel  # of another process
            for row, mel in enumerate(made.mels)
        ]

    def _frames(self, samples: Samples, row: int) -> int:
        """Mel frames of the recording."""
        frames, found = self.dataset.num_frames, samples.splice_of(row)
        if found is None:
            return int(frames[samples.indices[row]])
        return found.frames + int(frames[found.second]) - found.from_frame


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
