"""Batches out of data workers, whose mistakes reach the user as one line.

PyTorch raises what a worker raised with the worker's traceback as its message; here a refusal comes
as a value instead and is raised where the batches are taken.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from profforce.data.batch import Batch, Item, collate
from profforce.data.dataset import MelDataset
from profforce.errors import UserError


@dataclass(frozen=True)
class Refusal:
    """Stands for an utterance that cannot be used."""

    message: str


class _Refusing(torch.utils.data.Dataset["Item | Refusal"]):
    """A dataset that returns what it would raise."""

    def __init__(self, dataset: MelDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, position: int) -> Item | Refusal:
        try:
            return self.dataset[position]
        except UserError as error:
            return Refusal(str(error))


def _collate(items: Sequence[Item | Refusal]) -> Batch | Refusal:
    good: list[Item] = []
    for item in items:
        if isinstance(item, Refusal):
            return item
        good.append(item)
    return collate(good)


def loader(
    dataset: MelDataset, batches: Iterable[list[int]], num_workers: int
) -> Iterator[Batch | Refusal]:
    """An iterator over ``batches`` of positions, begun at once; :func:`accepted` opens each."""
    made: DataLoader[Any] = DataLoader(
        _Refusing(dataset),
        batch_sampler=batches,
        collate_fn=_collate,
        num_workers=num_workers,
        generator=torch.Generator(),  # its own, so that a resume draws what the run drew
        multiprocessing_context="spawn" if num_workers else None,
    )
    return iter(made)


def accepted(batch: Batch | Refusal) -> Batch:
    """The batch; raises :class:`UserError` for a refusal."""
    if isinstance(batch, Refusal):
        raise UserError(batch.message)
    return batch
