"""Gates on the discriminator's accuracy, and the ramp."""

import pytest

from profforce.config import MethodConfig
from profforce.training.gates import ForcingWeights, Gates


def gates(accuracy: float, **changes: float) -> Gates:
    settings = {"start_step": 10, "ramp_steps": 4, "imitation_weight": 0.0, **changes}
    return Gates(MethodConfig(weight=0.2, teacher_weight=0.1, **settings), accuracy)


@pytest.mark.parametrize(
    ("accuracy", "model_open", "discriminator_open"),
    [(0.5, False, True), (0.75, False, True), (0.76, True, True), (0.97, True, False)],
)
def test_limits(accuracy: float, model_open: bool, discriminator_open: bool) -> None:
    both = gates(accuracy)
    assert (both.model_open, both.discriminator_open) == (model_open, discriminator_open)


def test_the_ramp_starts_at_the_start_step_and_ends_at_the_weight() -> None:
    both = gates(0.9)
    weights = [both.weights(step).free for step in range(9, 16)]
    assert weights == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert both.weights(20) == ForcingWeights(free=0.2, teacher=0.1)
    assert gates(0.6).weights(20) == ForcingWeights()


def test_the_gate_shuts_out_the_discriminator_but_not_the_expert() -> None:
    expert = {"imitation_weight": 0.3, "attention_weight": 0.7, "matching_weight": 0.5}
    assert gates(0.6, **expert).weights(20) == ForcingWeights(imitation=0.3, attention=0.7)
    assert gates(0.9, **expert).weights(20) == ForcingWeights(0.2, 0.1, 0.5, 0.3, 0.7)
    assert gates(0.9, **expert).weights(9) == ForcingWeights()


def test_the_average_moves_by_its_decay() -> None:
    both = gates(0.5, gate_decay=0.9)
    both.update(1.0)
    assert both.accuracy == pytest.approx(0.55)


def test_terms_that_come_less_often_weigh_as_many_times_as_much() -> None:
    assert gates(0.9, interval=4).weights(20) == ForcingWeights(0.8, 0.4)
