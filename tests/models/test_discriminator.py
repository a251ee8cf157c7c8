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
    alignment_features,
    behaviour,
    build_discriminator,
    fooling_loss,
    gan_loss,
    gradient_penalty,
    matching_loss,
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
        torch.testing.assert_close(alone.logits[0], batch.logits[i])
        torch.testing.assert_close(alone.features[0], batch.features[i])


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
        real = judge(smooth * 5**0.5, lengths).logits
        made = judge(torch.randn(32, 20, 8), lengths).logits
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
    assert out.logits.tolist() == [LOGIT_LIMIT, LOGIT_LIMIT]


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
    both = behaviour(hidden, mel, None, DiscriminatorConfig(), 2)
    assert both.shape == (2, 3, 8 + 6)
    assert torch.equal(both[:, 1, 8:11], mel[:, 2])
    assert both[:, 2, 11:].abs().sum() == 0
    only = DiscriminatorConfig(use_hidden=False)
    assert torch.equal(behaviour(hidden, mel, None, only, 2), both[..., 8:])
    assert torch.equal(
        behaviour(hidden, mel, None, replace(DiscriminatorConfig(), use_outputs=False), 2), hidden
    )


def test_the_length_control_sees_zeros_only() -> None:
    control = LengthDiscriminator(10)
    crop = torch.randn(2, 10, 4)
    crop[1, 6:] = 0
    other = torch.rand(2, 10, 4) + 1
    other[1, 6:] = 0
    assert torch.equal(control(crop), control(other))
    assert control(crop)[0] != control(crop)[1]


def test_hinge_has_a_margin_for_the_discriminator_and_none_for_the_model() -> None:
    logits = torch.tensor([-0.5, 3.0])
    assert float(gan_loss(logits, True, GanLoss.hinge)) == pytest.approx(0.75)
    assert float(gan_loss(logits, False, GanLoss.hinge)) == pytest.approx(2.25)
    assert float(fooling_loss(logits, True, GanLoss.hinge)) == pytest.approx(-1.25)
    assert float(fooling_loss(logits, False, GanLoss.hinge)) == pytest.approx(1.25)
    for kind in (GanLoss.bce, GanLoss.least_squares):
        assert float(fooling_loss(logits, True, kind)) == float(gan_loss(logits, True, kind))


def test_alignment_features_say_how_attention_moves_and_not_where() -> None:
    steps = torch.eye(9)[[1, 2, 2, 5]][None, None]
    steps[0, 0, 2] = torch.tensor([0, 0, 0.5, 0, 0.5, 0, 0, 0, 0])
    features = alignment_features(steps)
    torch.testing.assert_close(features[0, :, 0], torch.tensor([0.0, 1, 1, 2]))
    torch.testing.assert_close(features[0, :, 1], torch.tensor([0.0, 0, 1, 0]), atol=2e-3, rtol=0)
    torch.testing.assert_close(features[0, :, 2], torch.tensor([1.0, 1, 0.5, 1]))
    torch.testing.assert_close(alignment_features(steps.roll(3, -1)), features)
    padded = torch.nn.functional.pad(steps, (0, 4, 0, 2))
    longer = alignment_features(padded)
    torch.testing.assert_close(longer[:, :4], features)
    assert longer[:, 4:].abs().sum() == 0


def test_behaviour_with_alignments_fits_its_discriminator() -> None:
    config = DiscriminatorConfig(use_alignments=True, width=8)
    alignments = torch.rand(2, 2, 3, 5).softmax(-1)
    seen = behaviour(torch.randn(2, 3, 8), torch.randn(2, 5, 3), alignments, config, 2)
    torch.testing.assert_close(seen[..., -3:], alignment_features(alignments))
    assert build_discriminator(config, MODEL, 3)(seen, torch.tensor([3, 2])).logits.shape == (2,)


@pytest.mark.parametrize("kind", list(DiscriminatorKind))
def test_spectral_norm_bounds_every_linear_and_convolution_layer(kind: DiscriminatorKind) -> None:
    torch.manual_seed(0)
    judge = build_discriminator(
        DiscriminatorConfig(kind=kind, width=8, spectral_norm=True), MODEL, 3
    )
    layers = [m for m in judge.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv1d))]
    assert layers
    for layer in layers:
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(50)
        for _ in range(60):  # power iterations, one a look at the weight
            weight = layer.weight
        largest = torch.linalg.matrix_norm(weight.flatten(1), 2)
        assert float(largest) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kind", list(DiscriminatorKind))
def test_the_gradient_penalty_is_that_of_finite_differences(kind: DiscriminatorKind) -> None:
    torch.manual_seed(0)
    judge = build_discriminator(DiscriminatorConfig(kind=kind, width=4), MODEL, 3).double()
    seen, lengths = torch.randn(2, 4, 14, dtype=torch.float64), torch.tensor([4, 2])
    penalty = gradient_penalty(judge, seen, lengths)
    squares = 0.0
    for index in torch.cartesian_prod(*(torch.arange(n) for n in seen.shape)).tolist():
        step = torch.zeros_like(seen)
        step[tuple(index)] = 1e-5
        ahead, behind = (judge(seen + sign * step, lengths).logits.sum() for sign in (1, -1))
        squares += float((ahead - behind) / 2e-5) ** 2
    assert float(penalty) == pytest.approx(squares / 2 / 2, rel=1e-6)
    penalty.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in judge.parameters())
    assert seen.grad is None


def test_matching_is_of_means_and_moves_the_self_made_side_only() -> None:
    made = torch.tensor([[1.0, 0.0], [3.0, 0.0]], requires_grad=True)
    real = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss = matching_loss(made, real)
    assert float(loss.detach()) == pytest.approx((4 + 1) / 2)
    loss.backward()
    assert made.grad is not None and real.grad is None
