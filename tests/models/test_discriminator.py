"""Discriminators: padding invariance, losses, what they are shown."""

import math
from dataclasses import replace

import pytest
import torch

from profforce.config import DiscriminatorConfig, DiscriminatorKind, GanLoss, ModelConfig
from profforce.models.discriminator import (
    LOGIT_LIMIT,
    LengthDiscriminator,
    accuracy,
    behaviour,
    build_discriminator,
    gan_loss,
)

MODEL = ModelConfig(width=8, num_heads=2, reduction_factor=2)


@pytest.mark.parametrize("kind", list(DiscriminatorKind))
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_crop_alone_equals_itself_in_a_padded_batch(
    kind: DiscriminatorKind, num_layers: int
) -> None:
    torch.manual_seed(0)
    config = DiscriminatorConfig(kind=kind, width=8, num_layers=num_layers)
    judge = build_discriminator(config, MODEL, 3).double()
    seen = torch.randn(3, 12, 8 + 2 * 3, dtype=torch.float64)
    lengths = torch.tensor([12, 1, 5])
    batch = judge(seen, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = judge(seen[i : i + 1, :length], lengths[i : i + 1])
        torch.testing.assert_close(alone[0], batch[i])


@pytest.mark.parametrize("kind", list(DiscriminatorKind))
def test_it_learns_a_difference_in_time(kind: DiscriminatorKind) -> None:
    torch.manual_seed(0)
    config = DiscriminatorConfig(kind=kind, width=16, use_outputs=False)
    judge = build_discriminator(config, MODEL, 3)
    optimizer = torch.optim.Adam(judge.parameters(), 3e-3)
    lengths = torch.full((32,), 20)
    for _ in range(120):
        noise = torch.randn(32, 20, 8)
        smooth = torch.nn.functional.avg_pool1d(noise.transpose(1, 2), 5, 1, 2).transpose(1, 2)
        real, made = judge(smooth * 5**0.5, lengths), judge(torch.randn(32, 20, 8), lengths)
        loss = gan_loss(real, True, GanLoss.bce) + gan_loss(made, False, GanLoss.bce)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(accuracy(real, made)) > 0.9


def test_logits_are_clipped_and_losses_have_their_known_values() -> None:
    logits = torch.tensor([0.0, 0.0])
    assert float(gan_loss(logits, True, GanLoss.bce)) == pytest.approx(math.log(2))
    assert float(gan_loss(logits, False, GanLoss.least_squares)) == pytest.approx(0.25)
    config = DiscriminatorConfig(kind=DiscriminatorKind.conv, width=8)
    judge = build_discriminator(config, MODEL, 3)
    with torch.no_grad():
        judge.head.bias.fill_(1e6)
    out = judge(torch.randn(2, 4, 14), torch.tensor([4, 2]))
    assert out.tolist() == [LOGIT_LIMIT, LOGIT_LIMIT]


@pytest.mark.parametrize(
    ("real", "made", "value"),
    [
        ([1, 1], [-1, -1], 1.0),
        ([-1, -1], [1, 1], 0.0),
        ([1, -1], [1, -1], 0.5),
        ([0, 0], [0, 0], 0.5),
    ],
)
def test_accuracy(real: list[float], made: list[float], value: float) -> None:
    assert float(accuracy(torch.tensor(real) * 1.0, torch.tensor(made) * 1.0)) == value


def test_behaviour_joins_what_the_settings_name() -> None:
    hidden, mel = torch.randn(2, 3, 8), torch.randn(2, 5, 3)
    both = behaviour(hidden, mel, DiscriminatorConfig(), 2)
    assert both.shape == (2, 3, 8 + 6)
    assert torch.equal(both[:, 1, 8:11], mel[:, 2])
    assert both[:, 2, 11:].abs().sum() == 0
    only = DiscriminatorConfig(use_hidden=False)
    assert torch.equal(behaviour(hidden, mel, only, 2), both[..., 8:])
    assert torch.equal(
        behaviour(hidden, mel, replace(DiscriminatorConfig(), use_outputs=False), 2), hidden
    )


def test_the_length_control_sees_zeros_only() -> None:
    control = LengthDiscriminator(10)
    crop = torch.randn(2, 10, 4)
    crop[1, 6:] = 0
    other = torch.rand(2, 10, 4) + 1
    other[1, 6:] = 0
    assert torch.equal(control(crop), control(other))
    assert control(crop)[0] != control(crop)[1]
