"""The prenet's noise: a function of its key, with the statistics of dropout."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.nn.noise import PrenetNoise
from profforce.nn.prenet import Prenet


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    utterance=st.integers(0, 2**32 - 1),
    step=st.integers(0, 10_000),
    layer=st.integers(0, 3),
)
def test_one_cell_does_not_depend_on_what_is_drawn_beside_it(
    seed: int, utterance: int, step: int, layer: int
) -> None:
    alone = PrenetNoise(seed, torch.tensor([utterance])).keep(layer, torch.tensor([step]), 8, 0.5)
    noise = PrenetNoise(seed, torch.tensor([1, utterance, 2]))
    together = noise.keep(layer, torch.arange(step, step + 3), 12, 0.5)
    assert torch.equal(alone[0, 0], together[1, 0, :8])
    assert torch.equal(
        noise.select(torch.tensor([1])).keep(layer, torch.arange(step, step + 3), 12, 0.5),
        together[1:2],
    )


def test_rate_and_independence() -> None:
    for p in (0.1, 0.5, 0.9):
        keep = PrenetNoise(7, torch.arange(64)).keep(0, torch.arange(64), 64, p).float()
        assert abs(float(keep.mean()) - (1 - p)) < 0.01
        for axis in range(3):
            assert float(keep.mean([a for a in range(3) if a != axis]).std()) < 0.03
    base = PrenetNoise(7, torch.arange(64)).keep(0, torch.arange(64), 64, 0.5)
    for other in (
        PrenetNoise(8, torch.arange(64)).keep(0, torch.arange(64), 64, 0.5),
        PrenetNoise(7, torch.arange(64)).keep(1, torch.arange(64), 64, 0.5),
        PrenetNoise(7, torch.arange(64)).keep(0, torch.arange(1, 65), 64, 0.5),
        PrenetNoise(7, torch.arange(1, 65)).keep(0, torch.arange(64), 64, 0.5),
        base.roll(1, 2),
    ):
        assert abs(float((base == other).float().mean()) - 0.5) < 0.01


def test_known_bits_so_that_old_runs_can_be_repeated() -> None:
    keep = PrenetNoise(1, torch.tensor([5])).keep(0, torch.tensor([3]), 16, 0.5)
    assert "".join(str(int(bit)) for bit in keep[0, 0]) == KNOWN


def test_without_a_key_there_is_no_dropout_and_with_one_the_scale_is_kept() -> None:
    torch.manual_seed(0)
    prenet = Prenet(4, 512, 1, 0.5)
    x, steps = torch.randn(2, 3, 4), torch.arange(3)
    plain = prenet(x, None, steps)
    assert torch.equal(plain, prenet.train()(x, None, steps))
    noisy = prenet(x, PrenetNoise(0, torch.arange(2)), steps)
    assert abs(float(noisy.mean() / plain.mean()) - 1) < 0.1
    assert set((noisy[plain > 0] / plain[plain > 0]).round(decimals=4).unique().tolist()) == {0, 2}


KNOWN = "0101101010110001"
