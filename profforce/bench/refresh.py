"""How often to refresh the sample pool, and with how many utterances: arithmetic on measured times.

Every N steps G utterances are generated; every i-th step (``method.interval``) uses b of them. Then
generating costs ``generate(G) / N`` a step, and each sample is used ``N b / (i G)`` times on
average. With N a multiple of i, a sample that is used was made ``(N - i) / 2`` steps ago on average
and ``N - i`` at most, and ``freerun.ahead`` steps more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """What was measured, in milliseconds."""

    teacher_forcing: float
    """A step of plain teacher forcing."""
    professor_forcing: float
    """A step that also trains on utterances of the pool; every ``interval``-th is one."""
    generate: Mapping[int, float]
    """Refreshing a pool of G utterances, for each G that was measured."""
    used_a_step: int
    """b, utterances of the pool that such a step uses."""
    interval: int = 1
    """i, ``method.interval``."""
    ahead: int = 0
    """``freerun.ahead``, which N has to exceed."""

    @property
    def without_generating(self) -> float:
        """A step on average, the pool's making left out."""
        return self.teacher_forcing + self.extra / self.interval

    @property
    def extra(self) -> float:
        """What training on the pool adds to a step."""
        return self.professor_forcing - self.teacher_forcing


@dataclass(frozen=True)
class Choice:
    """One pair of N and G."""

    every: int
    """N, ``freerun.every``."""
    pool_size: int
    """G, ``freerun.pool_size``."""
    ms_a_step: float
    """On average, generating included."""
    ratio: float
    """The same as a multiple of a step of teacher forcing."""
    generating: float
    """Share of the time that goes into generating."""
    uses: float
    """How often a generated sample is used on average; below 1 some are never used."""
    mean_staleness: float
    """Steps since a sample was made, on average over its uses."""
    max_staleness: int
    """Steps since a sample was made, at the most."""


def choice(times: Times, every: int, pool_size: int) -> Choice:
    """What N = ``every`` and a measured G = ``pool_size`` cost."""
    generating = times.generate[pool_size] / every
    step = times.without_generating + generating
    oldest = every - math.gcd(every, times.interval)  # of the steps since a refresh that use it
    return Choice(
        every=every,
        pool_size=pool_size,
        ms_a_step=step,
        ratio=step / times.teacher_forcing,
        generating=generating / step,
        uses=every * times.used_a_step / (times.interval * pool_size),
        mean_staleness=oldest / 2 + times.ahead,
        max_staleness=oldest + times.ahead,
    )


def recommend(times: Times, budget: float, max_uses: float) -> Choice:
    """The freshest samples within the budget, none made in vain.

    Args:
        times: what was measured.
        budget: most of a step's time that generating may take, in (0, 1).
        max_uses: how often a sample is to be used: N is what this makes of G.

    Returns:
        The smallest measured G that keeps to the budget. If none does, the pair within the budget
        that uses its samples least often.
    """
    pairs = [choice(times, _every(times, size, max_uses), size) for size in sorted(times.generate)]
    fitting = [pair for pair in pairs if pair.generating <= budget]
    if fitting:
        return min(fitting, key=lambda pair: (pair.every, pair.ratio))
    within = [choice(times, _rarest(times, size, budget), size) for size in times.generate]
    return min(within, key=lambda pair: (pair.uses, pair.every))


def _every(times: Times, pool_size: int, uses: float) -> int:
    """The N with which each of G utterances is used so often, rounded down to the interval."""
    lots = int(uses * pool_size / times.used_a_step)
    return max(lots, times.ahead // times.interval + 1) * times.interval


def _rarest(times: Times, pool_size: int, budget: float) -> int:
    """The smallest N with which generating G utterances stays within the budget."""
    allowed = times.without_generating * budget / (1 - budget)
    lots = math.ceil(times.generate[pool_size] / allowed / times.interval)
    every = max(lots, times.ahead // times.interval + 1) * times.interval
    while choice(times, every, pool_size).generating > budget:  # what rounding left over
        every += times.interval
    return every


def grid(times: Times, recommended: Choice) -> list[Choice]:
    """Pairs to show: every measured G with each N that uses one of them up once, and more."""
    sizes = sorted(times.generate)
    once = [_every(times, size, 1.0) for size in sizes]
    rates = sorted({*once, 2 * once[-1], 4 * once[-1], recommended.every})
    return [choice(times, every, size) for every in rates for size in sizes]
