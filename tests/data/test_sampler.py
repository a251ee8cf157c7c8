from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.data.sampler import BucketSampler

LENGTHS = st.lists(st.integers(1, 900), max_size=300)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_every_position_once_in_full_batches(
    lengths: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    sampler = BucketSampler(lengths, batch_size, seed)
    batches = sampler.batches(epoch)
    assert sorted(k for batch in batches for k in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    sizes = sorted(len(batch) for batch in batches)
    assert all(size == batch_size for size in sizes[1:])
    assert not sizes or 0 < sizes[0] <= batch_size


BUDGETS = st.none() | st.integers(1, 5000)
CHUNKS = st.lists(st.integers(0, 300), max_size=3)


def budgeted(
    lengths: list[int], batch_size: int, max_frames: int | None, chunks: list[int]
) -> BucketSampler:
    firsts = sorted(k for k in chunks if k < len(lengths))
    return BucketSampler(lengths, batch_size, 3, max_frames=max_frames, chunks=firsts)


@given(LENGTHS, st.integers(1, 40), BUDGETS, CHUNKS, st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_a_budget_holds_and_every_position_comes_once(
    lengths: list[int], batch_size: int, max_frames: int | None, chunks: list[int], epoch: int
) -> None:
    sampler = budgeted(lengths, batch_size, max_frames, chunks)
    batches = list(sampler.batches(epoch))
    assert sorted(k for batch in batches for k in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler) == len(sampler.batches(epoch + 1))
    for batch in batches:
        padded = len(batch) * max(lengths[k] for k in batch)
        assert 0 < len(batch) <= batch_size
        assert max_frames is None or padded <= max_frames or len(batch) == 1


@given(LENGTHS, st.integers(1, 40), BUDGETS, CHUNKS, st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_left_and_what_ranks_take_are_slices(
    lengths: list[int],
    batch_size: int,
    max_frames: int | None,
    chunks: list[int],
    data: st.DataObject,
) -> None:
    sampler = budgeted(lengths, batch_size, max_frames, chunks)
    whole = list(sampler.batches(1))
    done = data.draw(st.integers(0, len(whole)))
    assert list(sampler.batches(1)[done:]) == whole[done:]
    ranks = [list(sampler.batches(1)[rank::3]) for rank in range(3)]
    assert sorted(batch for rank in ranks for batch in rank) == sorted(whole)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=300), CHUNKS, BUDGETS)
@settings(max_examples=60, deadline=None)
def test_chunks_come_one_after_the_other(
    lengths: list[int], chunks: list[int], max_frames: int | None
) -> None:
    sampler = budgeted(lengths, 8, max_frames, chunks)
    firsts = np.array(sorted(k for k in chunks if k < len(lengths)))
    came = [
        {int(np.searchsorted(firsts, k, side="right")) for k in batch}
        for batch in sampler.batches(0)
    ]
    assert all(len(numbers) == 1 for numbers in came)
    series = [min(numbers) for numbers in came]
    changes = sum(a != b for a, b in pairwise(series))
    assert changes == len(set(series)) - 1


def test_a_budget_is_used() -> None:
    lengths = [(k * 7919) % 1000 + 100 for k in range(2000)]
    batches = list(BucketSampler(lengths, 64, 0, max_frames=8000).batches(0))
    assert len(batches) < 1.12 * sum(lengths) / 8000
    padded = sum(len(batch) * max(lengths[k] for k in batch) for batch in batches)
    assert padded < 1.08 * sum(lengths)


def test_a_budget_mixes_batches_anew() -> None:
    lengths = [(k * 7919) % 1000 + 100 for k in range(2000)]
    sampler = BucketSampler(lengths, 64, 0, max_frames=8000)
    first, second = ({frozenset(b) for b in sampler.batches(epoch)} for epoch in (0, 1))
    assert len(first & second) < 0.05 * len(first)


@given(LENGTHS, BUDGETS, st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_a_pure_function_of_seed_and_epoch(
    lengths: list[int], budget: int | None, seed: int, epoch: int
) -> None:
    sampler = BucketSampler(lengths, 8, seed, max_frames=budget)
    sampler.batches(epoch + 1)
    again = BucketSampler(lengths, 8, seed, max_frames=budget)
    assert list(sampler.batches(epoch)) == list(again.batches(epoch))


@given(LENGTHS, st.integers(1, 20), BUDGETS, CHUNKS, st.integers(1, 9), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_what_goes_together_is_still_every_position_once(
    lengths: list[int],
    batch_size: int,
    max_frames: int | None,
    chunks: list[int],
    together: int,
    epoch: int,
) -> None:
    firsts = sorted(k for k in chunks if k < len(lengths))
    given = {"max_frames": max_frames, "chunks": firsts}
    sampler = BucketSampler(lengths, batch_size, 3, together=together, **given)
    batches = list(sampler.batches(epoch))
    assert sorted(k for batch in batches for k in batch) == list(range(len(lengths)))
    assert len(batches) == len(sampler)


@pytest.mark.parametrize("together", [2, 3, 8])
def test_the_batches_of_a_step_are_alike_in_every_epoch(together: int) -> None:
    """So that of several processes none waits long; single batches would differ by a third."""
    lengths = [(k * 7919) % 1000 + 100 for k in range(3010)]
    sampler = BucketSampler(lengths, 8, 0, together=together)
    assert len(sampler) % together  # the steps' edges move from epoch to epoch
    longest = [max(lengths[k] for k in sampler.batch(n)) for n in range(3 * len(sampler))]
    steps = [longest[k : k + together] for k in range(0, len(longest) - together, together)]
    waits = [max(step) / (sum(step) / len(step)) for step in steps]
    assert sum(waits) / len(waits) < 1.08
    assert len({tuple(step) for step in steps}) > 0.9 * len(steps)


def test_epochs_and_seeds_differ() -> None:
    lengths = list(range(100))
    first = BucketSampler(lengths, 8, 0)
    assert list(first.batches(0)) != list(first.batches(1))
    assert list(first.batches(0)) != list(BucketSampler(lengths, 8, 1).batches(0))


def test_the_order_of_older_runs_stays() -> None:
    """A run that goes on must see the batches that it would have seen."""
    batches = BucketSampler([(k * 7) % 11 for k in range(10)], 4, 5).batches(2)
    assert list(batches) == EXPECTED


EXPECTED = [[0, 8, 5, 2], [6, 3], [7, 4, 1, 9]]


def test_like_lengths_share_a_batch() -> None:
    lengths = [(k * 7919) % 1000 + 1 for k in range(512)]
    batches = BucketSampler(lengths, 16, 0).batches(0)
    padded = sum(len(batch) * max(lengths[k] for k in batch) for batch in batches)
    assert padded < 1.05 * sum(lengths)


@pytest.mark.parametrize(("settings", "name"), [((0, None), "batch_size"), ((1, 0), "max_frames")])
def test_sizes_must_be_positive(settings: tuple[int, int | None], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        BucketSampler([1], settings[0], 0, max_frames=settings[1])
