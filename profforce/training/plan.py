"""Which batches make up an optimizer step, in all processes, and the share that each has in it.

A step takes ``trainer.accumulate`` batches in each process. They are numbered over the whole run,
and everything drawn for a batch follows from its number: a step of two processes is one of a single
process that accumulates twice as many.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from profforce.config import MethodName, TrainConfig
from profforce.data.batch import Batch
from profforce.data.corpus import Corpus
from profforce.data.dataset import MelDataset
from profforce.data.loading import accepted, loader
from profforce.data.sampler import BucketSampler
from profforce.training.distributed import Team
from profforce.training.shares import Shares, counted, divided
from profforce.training.signals import sigint_blocked
from profforce.training.state import TrainState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """One of the batches of a step."""

    number: int
    """Counts the batches of the run."""
    free: list[int]
    """What the model says by itself: rows of the pool, or texts of the corpus; may be none."""
    shares: Shares


def plan_step(state: TrainState, sampler: BucketSampler) -> list[Part]:
    """This process's parts of the coming step; counts the batches of all processes as drawn.

    All lengths are known without reading anything, so that nobody has to be asked for theirs.
    """
    team, first = state.team, state.batches_drawn
    numbers = range(first, first + state.config.trainer.accumulate * team.size)
    free = [_said_alone(state, number) for number in numbers]
    pairs = zip(numbers, free, strict=True)
    counts = [counts_of(state, sampler.batch(number), said) for number, said in pairs]
    state.batches_drawn += len(numbers)
    parts = list(map(Part, numbers, free, divided(counts)))
    return parts[team.rank :: team.size]


def _said_alone(state: TrainState, number: int) -> list[int]:
    if not state.forces:
        return []
    if state.config.method.name == MethodName.through_time:
        return state.choose_texts(number)
    return state.pool.choose(state.config.pool_batch_size, state.config.pool_max_frames)


def counts_of(state: TrainState, positions: list[int], free: list[int]) -> Shares:
    """What a batch of these utterances of the corpus counts, with what is said by the model."""
    corpus = state.corpus.train
    if free and state.config.method.name == MethodName.professor_forcing:
        free_frames = state.pool.num_frames(free)
    else:
        free_frames = corpus.num_frames[free]
    factor = state.config.model.reduction_factor
    return counted(corpus.num_frames[positions], corpus.num_symbols[positions], free_frames, factor)


def own_batches(
    corpus: Corpus, sampler: BucketSampler, drawn: int, config: TrainConfig, team: Team
) -> Iterator[Batch]:
    """This process's batches for ever, after the ``drawn`` that all processes took before.

    The order is a function of seed and epoch.
    """
    number, size = drawn + team.rank, team.size
    while True:
        epoch, position = divmod(number, len(sampler))
        mine = sampler.batches(epoch)[position::size]
        number += len(mine) * size
        with sigint_blocked():
            batches = loader(corpus.train, mine, config.data.num_workers)
        yield from map(accepted, batches)


def build_sampler(dataset: MelDataset, config: TrainConfig, processes: int = 1) -> BucketSampler:
    """Deals out the training set within the budget; says what goes beyond it.

    What the ``processes`` take for a step is of like lengths.
    """
    trainer = config.trainer
    if trainer.max_frames is not None:
        longer = int((dataset.num_frames > trainer.max_frames).sum())
        if longer:
            log.warning(
                "%d utterances are longer than trainer.max_frames=%d: each is a batch of its own; "
                "data.max_seconds=%.1f would leave them out",
                *(longer, trainer.max_frames),
                trainer.max_frames * config.mel.hop_length / config.mel.sample_rate,
            )
    return BucketSampler(
        dataset.num_frames,
        trainer.batch_size,
        config.seed,
        max_frames=trainer.max_frames,
        chunks=dataset.chunks(config.data.shuffle_buffer),
        together=trainer.accumulate * processes,
    )
