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


@given(LENGTHS, st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_a_pure_function_of_seed_and_epoch(lengths: list[int], seed: int, epoch: int) -> None:
    sampler = BucketSampler(lengths, 8, seed)
    sampler.batches(epoch + 1)
    assert sampler.batches(epoch) == BucketSampler(lengths, 8, seed).batches(epoch)


def test_epochs_and_seeds_differ() -> None:
    lengths = list(range(100))
    first = BucketSampler(lengths, 8, 0)
    assert first.batches(0) != first.batches(1)
    assert first.batches(0) != BucketSampler(lengths, 8, 1).batches(0)


def test_like_lengths_share_a_batch() -> None:
    lengths = [(k * 7919) % 1000 + 1 for k in range(512)]
    batches = BucketSampler(lengths, 16, 0).batches(0)
    padded = sum(len(batch) * max(lengths[k] for k in batch) for batch in batches)
    assert padded < 1.05 * sum(lengths)


def test_batch_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        BucketSampler([1], 0, 0)
