"""Crops give the discriminator nothing but behaviour."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.training.crops import paired_crops


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=6),
    crop=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_both_halves_are_the_same_window(
    lengths: list[tuple[int, int]], crop: int, seed: int
) -> None:
    first, second = (torch.tensor(side) for side in zip(*lengths, strict=True))
    # every valid step carries its own number, counted from 1; padding would be far off
    numbers = torch.arange(1.0, 31.0)[None, :, None].expand(len(lengths), -1, 2)

    def padded(size: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(30)[None, :, None] < size[:, None, None], numbers, 999.0)

    a, b, cut = paired_crops(
        padded(first), padded(second), first, second, crop, torch.Generator().manual_seed(seed)
    )
    assert torch.equal(a, b)  # the same window of the same counter, and equal zeros after it
    assert torch.equal(cut, torch.minimum(first, second).clamp(max=crop))
    assert a.max() < 999
    for row, size in zip(a, cut.tolist(), strict=True):
        window = row[:size, 0]
        assert torch.equal(window, torch.arange(window[0], window[0] + size))
        assert row[size:].abs().sum() == 0


def test_windows_reach_the_end_and_the_start() -> None:
    x = torch.arange(10.0)[None, :, None]
    ten = torch.tensor([10])
    starts = {
        int(paired_crops(x, x, ten, ten, 4, torch.Generator().manual_seed(s))[0][0, 0, 0])
        for s in range(100)
    }
    assert starts == set(range(7))
