"""Positions that end with no length: recent steps in both forms, distances, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import ModelConfig, PositionsKind
from profforce.nn.attention import EncoderSelfAttention
from profforce.nn.positions import RecentSteps, distance_slopes


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(2, 9), st.integers(1, 8), st.integers(0, 999))
def test_recent_steps_are_the_same_at_once_in_parts_and_one_by_one(
    kernel: int, steps: int, cut: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer, x = RecentSteps(4, kernel).double(), torch.randn(2, steps, 4, dtype=torch.float64)
    whole, state, cut = layer(x), layer.init_state(2, x), min(cut, steps - 1)
    first, between = layer.after(state, x[:, :cut])
    second, _ = layer.after(between, x[:, cut:])
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    for t in range(steps):
        y, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y, whole[:, t])
    later = x.clone()
    later[:, -1] += 1
    torch.testing.assert_close(layer(later)[:, :-1], whole[:, :-1])


def test_distance_alone_counts_and_some_heads_see_further() -> None:
    relative = ModelConfig(width=8, num_heads=4, positions=PositionsKind.relative)
    layer = EncoderSelfAttention(relative).double()
    bias = layer.distance_bias(torch.zeros(1, 9, 8, dtype=torch.float64))
    torch.testing.assert_close(bias[:, 1:, 1:], bias[:, :-1, :-1])
    torch.testing.assert_close(bias, bias.transpose(1, 2))
    assert bias[:, 0, 1].tolist() == pytest.approx([-1, -0.5, -0.25, -0.125])
    assert distance_slopes(1).tolist() == [1]


def test_a_symbol_far_away_changes_less_with_distances() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 40, 8)
    other = x.clone()
    other[:, -1] += 5
    mask = torch.ones(1, 40, dtype=torch.bool)
    changed = []
    for kind in PositionsKind:
        torch.manual_seed(1)
        layer = EncoderSelfAttention(ModelConfig(width=8, num_heads=2, positions=kind))
        changed.append(float((layer(x, mask) - layer(other, mask))[0, 0].abs().max().detach()))
    absolute, relative = changed
    assert relative < 0.1 * absolute


def test_distances_without_convolutions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"relative needs model.encoder_conv_layers >= 1, got 0"):
        ModelConfig(positions=PositionsKind.relative, encoder_conv_layers=0)
    for name in ("recent_steps", "symbols_per_frame"):
        with pytest.raises(ValueError, match=f"model.{name} must be"):
            ModelConfig(**{name: 0})
