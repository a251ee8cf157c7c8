"""The judge of takes: every planted fault is noticed, good speech is let pass."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import FaultConfig
from profforce.sampling.faults import Fault, FaultKind, Judge, Take
from tests.sampling import utterances as made

FAULTS = {
    "skip": (made.skip, {FaultKind.skipping}),
    "hurry": (made.hurry, {FaultKind.skipping}),
    "repeat": (made.repeat, {FaultKind.repeating}),
    "hang": (made.hang, {FaultKind.repeating}),
    "stay": (made.stay, {FaultKind.babbling}),
    "wander": (made.wander, {FaultKind.babbling, FaultKind.repeating, FaultKind.skipping}),
    "blur": (made.blur, {FaultKind.babbling}),
    "early": (made.early, {FaultKind.early_stop}),
    "endless": (made.endless, {FaultKind.no_stop}),
    "pause": (made.pause, {FaultKind.silence}),
    "mute": (made.mute, {FaultKind.silence}),
}


def judged(take: Take, plan: made.Plan, limits: FaultConfig | None = None) -> list[Fault]:
    mean, std = torch.full((20,), -5.3), torch.full((20,), 1.6)
    frame_s = plan.step_s / plan.frames
    judge = Judge(limits or FaultConfig(), mean, std, frame_s=frame_s, frames=plan.frames)
    return judge(take)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_good_speech_has_no_fault(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = made.good_plan(rng)
    assert judged(made.take_of(plan, rng), plan) == []


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("name", list(FAULTS))
def test_every_planted_fault_is_noticed(name: str, seed: int) -> None:
    plant, kinds = FAULTS[name]
    rng = np.random.default_rng(seed)
    plan = plant(made.good_plan(rng), rng)
    found = judged(made.take_of(plan, rng), plan)
    assert {fault.kind for fault in found} & kinds
    seconds = len(plan.at) * plan.step_s
    for fault in found:
        assert 0 <= fault.start_s <= fault.end_s <= seconds + 1e-6
        assert fault.detail and "\n" not in fault.detail


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("where", ["mel", "alignment"])
def test_values_that_are_not_finite_are_noticed(where: str, value: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = made.good_plan(rng)
    take = made.take_of(plan, rng)
    array = getattr(take, where)
    array[int(rng.integers(len(array))), int(rng.integers(array.shape[1]))] = value
    assert [fault.kind for fault in judged(take, plan)] == [FaultKind.not_finite]


def test_a_fault_says_where_it_is() -> None:
    rng = np.random.default_rng(5)
    plan = made.good_plan(rng)
    step = len(plan.at) // 2
    hang = np.full(round(1.6 / plan.step_s), plan.at[step])
    (found,) = judged(made.take_of(made.spliced(plan, step, hang), rng), plan)
    assert found.start_s == pytest.approx(step * plan.step_s, abs=0.3)
    assert found.end_s - found.start_s == pytest.approx(1.6, abs=0.4)


def test_attention_that_follows_nothing_is_the_only_thing_said_of_a_way() -> None:
    rng = np.random.default_rng(0)
    plan = made.blur(made.good_plan(rng), rng)
    (found,) = judged(made.take_of(plan, rng), plan)
    assert found.kind is FaultKind.babbling and "% of the attention follows" in found.detail


def test_hurry_is_seen_where_nothing_is_left_out() -> None:
    rng = np.random.default_rng(0)
    plan = replace(made.good_plan(rng), frames=1, step_s=256 / 22050, blur=0.4)
    at = np.arange(0, plan.num_symbols, 0.2)
    fast = np.concatenate([at[at < 10], np.arange(10, 30, 1.2), at[at >= 30]])
    for positions, kinds in ((at, []), (fast, [FaultKind.skipping])):
        one = replace(plan, at=positions, sound=np.ones(len(positions), dtype=bool))
        found = judged(made.take_of(one, rng), one)
        assert [fault.kind for fault in found] == kinds
        assert all("hurried" in fault.detail for fault in found)


def test_a_short_silence_is_noticed_if_it_is_everything() -> None:
    rng = np.random.default_rng(0)
    plan = made.mute(made.good_plan(rng), rng)
    plan = replace(plan, at=plan.at[: round(0.7 / plan.step_s)])
    plan = replace(plan, sound=plan.sound[: len(plan.at)])
    assert FaultKind.silence in {fault.kind for fault in judged(made.take_of(plan, rng), plan)}


def test_what_passes_is_a_setting() -> None:
    rng = np.random.default_rng(3)
    plan = made.hang(made.good_plan(rng), rng)
    take = made.take_of(plan, rng)
    assert judged(take, plan)
    assert not judged(take, plan, FaultConfig(max_hold_s=3.0))


@pytest.mark.parametrize("symbols", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_shortest_texts_can_be_judged(symbols: int, steps: int) -> None:
    weights = torch.full((steps, symbols), 1 / symbols)
    take = Take(torch.full((steps, 20), -4.0), weights, ["a"] * symbols, True, 1)
    plan = made.Plan(np.zeros(steps), np.ones(steps, dtype=bool), symbols, 1, 0.0116)
    assert isinstance(judged(take, plan), list)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_hold_s", 0.0), ("min_on_way", 1.5), ("max_hurry", 0.5), ("max_skipped_symbols", 0)],
)
def test_limits_that_cannot_be(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"faults\.{name} must be"):
        FaultConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("frames", "kinds"), [(10, [FaultKind.early_stop]), (11, [])])
def test_a_stop_at_the_first_moment_it_is_heard_is_one_too_early(
    frames: int, kinds: list[FaultKind]
) -> None:
    weights = torch.eye(2)[torch.arange(frames + 3) // 8]
    take = Take(torch.full((frames + 3, 20), -4.0), weights, ["a", "<eos>"], True, 10, 3)
    plan = made.Plan(np.zeros(2), np.ones(2, dtype=bool), 2, 1, 0.0116)
    assert [fault.kind for fault in judged(take, plan)] == kinds
