"""Two hundred faults planted in free runs, of every kind and size: the sampler notices each one.

The model is scripted: it speaks without a fault, but for what is planted in the run of a text.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from profforce.models.transformer import TransformerTTS
from profforce.sampling.faults import FaultKind
from profforce.sampling.script import Part
from profforce.sampling.stopping import StoppedBy
from profforce.sampling.takes import Taken
from tests.sampling.scripted import STEPS_A_SYMBOL, ScriptedMirror, parts_of, scripted

NUM_PLANTED = 200
WORDS = [
    "the",
    "train",
    "from",
    "paris",
    "leaves",
    "at",
    "seven",
    "in",
    "evening",
    "and",
    "it",
    "will",
    "be",
    "cold",
    "on",
    "june",
    "fifth",
]
KINDS = {
    "skips": {FaultKind.skipping},
    "repeats": {FaultKind.repeating},
    "hangs": {FaultKind.repeating},
    "babbles": {FaultKind.babbling, FaultKind.repeating},
    "blurs": {FaultKind.babbling},
    "stops early": {FaultKind.early_stop},
    "stop forced on": {FaultKind.early_stop},
    "stop forced off": {FaultKind.no_stop},
    "nan frames": {FaultKind.not_finite},
    "nan attention": {FaultKind.not_finite},
    "falls silent": {FaultKind.silence},
    "pauses": {FaultKind.silence},
}


@dataclass
class Plan:
    """What a run says, a value a decoder step."""

    at: list[int]
    """Symbol that attention rests on; -1 for all of them alike."""
    quiet: set[int]
    broken: set[int]
    """Steps whose frames are not finite."""
    lost: set[int]
    """Steps whose attention is not finite."""
    stop_from: int | None
    """Step from which the stop head is sure."""


def plan_of(kind: str, num_symbols: int, rng: np.random.Generator) -> Plan:
    """A run with ``kind`` planted in it, somewhere and more or less of it; "" for none."""
    at = [s for s in range(num_symbols) for _ in range(STEPS_A_SYMBOL)]
    at = [max(s - int(rng.random() < 0.1), 0) for s in at]  # attention is never quite regular
    middle = int(rng.integers(len(at) // 4, 3 * len(at) // 5))
    plan = Plan(at, set(), set(), set(), len(at) - 1)
    some = [middle + n for n in range(int(rng.integers(1, 9)))]
    if kind == "skips":
        plan.at = at[:middle] + at[middle + STEPS_A_SYMBOL * int(rng.integers(8, 15)) :]
    elif kind == "repeats":
        again = STEPS_A_SYMBOL * int(rng.integers(8, 13))
        plan.at = at[:middle] + at[max(middle - again, 0) :]
    elif kind == "hangs":
        plan.at = at[:middle] + [at[middle]] * int(rng.integers(40, 80)) + at[middle:]
    elif kind == "babbles":
        far = [s for s in range(num_symbols) if abs(s - at[middle]) > 5]
        places = rng.choice(far, int(rng.integers(5, 12))).repeat(4).tolist()
        plan.at = at[:middle] + places + at[middle:]
    elif kind == "blurs":
        plan.at = [-1] * len(at)
    elif kind == "nan frames":
        plan.broken = set(some)
    elif kind == "nan attention":
        plan.lost = set(some)
    elif kind == "falls silent":
        plan.quiet = set(range(int(rng.integers(0, 10)), 10**4))
    elif kind == "pauses":
        length = int(rng.integers(35, 70))
        plan.at = at[:middle] + [at[middle]] * length + at[middle:]
        plan.quiet = set(range(middle, middle + length))
    plan.stop_from = len(plan.at) - 1
    if kind.startswith("stop"):
        plan.stop_from = {"stops early": middle, "stop forced on": 0}.get(kind)
    return plan


class PlantedMirror(ScriptedMirror):
    """Says what is planned for the text of each identity."""

    def __init__(self, model: TransformerTTS, plans: dict[int, Plan]) -> None:
        super().__init__(model, "", self._turn_to)
        self.plans = plans

    def _turn_to(self, identity: int, held: bool) -> bool:
        self.plan = self.plans[identity]
        return False

    def _row(
        self, t: int, num_symbols: int, spoil: str, mel: Tensor, stop: Tensor, attention: Tensor
    ) -> None:
        plan = self.plan
        place = plan.at[t] if t < len(plan.at) else num_symbols - 1
        if place < 0:
            attention[:num_symbols] = 1 / num_symbols
        else:
            attention[place] = 1.0
        if t in plan.lost:
            attention[place] = float("nan")
        if t in plan.quiet:
            mel[:] = -5.0
        if t in plan.broken:
            mel[:] = float("nan")
        if plan.stop_from is not None and t >= plan.stop_from:
            stop[:] = 6.0


def texts(count: int, rng: np.random.Generator) -> list[str]:
    """Different ones of six to fourteen words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(rng.choice(WORDS, int(rng.integers(6, 15))))] = None
    return list(found)


def takes(kinds: list[str], seed: int) -> tuple[list[Part], list[Taken]]:
    """A take of a text for each of ``kinds``."""
    rng = np.random.default_rng(seed)
    taker, _, scripter = scripted("", lambda identity, held: False, retries=0, batch_size=32)
    parts = parts_of(scripter, texts(len(kinds), rng))
    plans = {
        part.identity: plan_of(kind, len(part.numbers), rng)
        for part, kind in zip(parts, kinds, strict=True)
    }
    taker.mirror = taker.held_mirror = PlantedMirror(taker.model, plans)
    found: list[Taken] = []
    for first in range(0, len(parts), 32):
        found += taker(parts[first : first + 32])
    return parts, found


@pytest.mark.parametrize("seed", range(2))
def test_every_one_of_two_hundred_planted_faults_is_noticed(seed: int) -> None:
    kinds = [list(KINDS)[n % len(KINDS)] for n in range(NUM_PLANTED)]
    _, found = takes(kinds, seed)
    noticed: Counter[str] = Counter()
    for kind, taken in zip(kinds, found, strict=True):
        noticed[kind] += bool({fault.kind for fault in taken.faults} & KINDS[kind])
        assert taken.mel.isfinite().all()
    assert noticed == Counter(kinds) and noticed.total() == NUM_PLANTED


@pytest.mark.parametrize("seed", range(2))
def test_none_of_two_hundred_runs_without_a_fault_is_reported(seed: int) -> None:
    parts, found = takes([""] * NUM_PLANTED, seed)
    assert [taken.faults for taken in found] == [[]] * NUM_PLANTED
    assert {taken.stopped_by for taken in found} == {StoppedBy.stop}
    for part, taken in zip(parts, found, strict=True):
        assert len(taken.mel) == 2 * STEPS_A_SYMBOL * len(part.numbers) - 1 + 3
    assert not torch.equal(found[0].mel, found[1].mel)
