"""Made utterances for the judge of takes: good ones, and each fault planted in them.

An utterance is a list of positions in the text, one a decoder step, from which an alignment and
a mel are made with all that good alignments show: attention between two symbols, to and fro, on
one symbol of three, several symbols on in a step of many frames, pauses at commas.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from profforce.sampling.faults import Take

QUIET, LOUD, FLOOR = -10.0, -4.5, -11.5
TEXT = "the train from chicago, to new york leaves at seven in the evening on june fifth"


@dataclass(frozen=True)
class Plan:
    """What is to be spoken how."""

    at: NDArray[np.float64]
    """``[U]``, position in the text at each step."""
    sound: NDArray[np.bool_]
    """``[U]``"""
    num_symbols: int
    frames: int
    """A decoder step."""
    step_s: float
    stopped: bool = True
    blur: float = 0.25


def good_plan(rng: np.random.Generator) -> Plan:
    """Speech of 11 to 20 symbols a second, with a pause at the comma, said once and in order."""
    frames = int(rng.choice([1, 2, 4, 6]))
    step_s = frames * 256 / 22050
    num_symbols = int(rng.integers(30, len(TEXT))) + 1
    pace = rng.uniform(11, 20)
    durations = rng.uniform(0.6, 1.4, num_symbols) / pace
    comma = TEXT.index(",")
    if comma < num_symbols:
        durations[comma] += rng.uniform(0.1, 0.4)
    ends = durations.cumsum()
    times = np.arange(0, ends[-1], step_s)
    at = np.searchsorted(ends, times).clip(0, num_symbols - 1).astype(float)
    at = np.maximum.accumulate((at // 2) * 2 if frames == 1 and rng.random() < 0.5 else at)
    at[-2:] = num_symbols - 1
    return Plan(at, np.floor(at) != comma, num_symbols, frames, step_s, blur=rng.uniform(0.1, 0.4))


def take_of(plan: Plan, rng: np.random.Generator) -> Take:
    """Alignment and mel of ``plan``."""
    num_steps = len(plan.at)
    flicker = plan.at + rng.choice([-1, 0, 0, 0, 1], num_steps) * (rng.random(num_steps) < 0.3)
    place = np.arange(plan.num_symbols)
    distance = np.abs(place[None] - flicker.clip(0, plan.num_symbols - 1)[:, None])
    weights = np.exp(-((distance / (0.3 + plan.blur)) ** 2)) + 0.02 / plan.num_symbols
    weights /= weights.sum(1, keepdims=True)
    level = np.where(plan.sound, LOUD, QUIET).repeat(plan.frames)
    mel = level[:, None] + rng.normal(0, 0.7, (len(level), 20))
    symbols = [*TEXT[: plan.num_symbols - 1], "<eos>"]
    return Take(
        mel=torch.tensor(mel, dtype=torch.float32),
        alignment=torch.tensor(weights, dtype=torch.float32),
        symbols=symbols,
        stopped=plan.stopped,
        min_frames=round(0.025 * plan.num_symbols * plan.frames / plan.step_s),
    )


Fault = Callable[[Plan, np.random.Generator], Plan]


def middle(plan: Plan, rng: np.random.Generator) -> int:
    """A step between a third and half of the way."""
    return int(rng.integers(len(plan.at) // 3, len(plan.at) // 2))


def spliced(plan: Plan, step: int, at: NDArray[np.float64], sounding: bool = True) -> Plan:
    """``plan`` with steps at positions ``at`` put in before ``step``."""
    return replace(
        plan,
        at=np.concatenate([plan.at[:step], at, plan.at[step:]]),
        sound=np.concatenate([plan.sound[:step], np.full(len(at), sounding), plan.sound[step:]]),
    )


def skip(plan: Plan, rng: np.random.Generator) -> Plan:
    """Ten symbols are passed over in one step."""
    step = middle(plan, rng)
    keep = np.ones(len(plan.at), dtype=bool)
    keep[step:] = plan.at[step:] > plan.at[step] + 10
    return replace(plan, at=plan.at[keep], sound=plan.sound[keep])


def hurry(plan: Plan, rng: np.random.Generator) -> Plan:
    """Twenty symbols in 0.2 seconds, each of them attended."""
    step = middle(plan, rng)
    fast = np.linspace(plan.at[step], plan.at[step] + 20, max(round(0.2 / plan.step_s), 2))
    slow = plan.at >= plan.at[step] + 20
    at = np.concatenate([plan.at[:step], fast, plan.at[slow]])
    sound = np.ones(len(at), dtype=bool)
    return replace(plan, at=np.minimum(at, plan.num_symbols - 1), sound=sound)


def repeat(plan: Plan, rng: np.random.Generator) -> Plan:
    """The last ten symbols are said again."""
    step = middle(plan, rng)
    again = plan.at[:step][plan.at[:step] > plan.at[step - 1] - 10]
    return spliced(plan, step, again)


def hang(plan: Plan, rng: np.random.Generator) -> Plan:
    """A sound is held for 1.6 seconds."""
    step = middle(plan, rng)
    return spliced(plan, step, np.full(round(1.6 / plan.step_s), plan.at[step]))


def stay(plan: Plan, rng: np.random.Generator) -> Plan:
    """The end of the text is said for 1.6 seconds."""
    end = np.full(round(1.6 / plan.step_s), plan.num_symbols - 1.0)
    return spliced(plan, len(plan.at), end)


def wander(plan: Plan, rng: np.random.Generator) -> Plan:
    """Two seconds of any places after the end, and no stop."""
    places = rng.integers(0, plan.num_symbols, round(0.5 / plan.step_s) + 1)
    places = places.repeat(4)[: round(2 / plan.step_s)].astype(float)
    return replace(spliced(plan, len(plan.at), places), stopped=False)


def blur(plan: Plan, rng: np.random.Generator) -> Plan:
    """Attention on everything at once."""
    return replace(plan, blur=plan.num_symbols / 2)


def early(plan: Plan, rng: np.random.Generator) -> Plan:
    """The stop head ends it in the middle."""
    step = middle(plan, rng)
    return replace(plan, at=plan.at[:step], sound=plan.sound[:step])


def endless(plan: Plan, rng: np.random.Generator) -> Plan:
    """The stop head is never sure."""
    return replace(plan, stopped=False)


def pause(plan: Plan, rng: np.random.Generator) -> Plan:
    """1.4 seconds of silence."""
    step = middle(plan, rng)
    return spliced(plan, step, np.full(round(1.4 / plan.step_s), plan.at[step]), sounding=False)


def mute(plan: Plan, rng: np.random.Generator) -> Plan:
    """Perfect attention, and no sound."""
    return replace(plan, sound=np.zeros(len(plan.sound), dtype=bool))
