"""What a benchmark suite is, and the list of them.

A new suite is one file with a ``SUITE`` and one line in :data:`SUITES`.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch

from profforce.config import BenchConfig
from profforce.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from profforce.bench.report import Derived, Row

Case = dict[str, int]
"""Sizes by name, such as ``{"B": 8, "T": 500}``."""

SUITES = {
    name: f"profforce.bench.{name}" for name in ("kernel", "attention", "decode", "train", "epoch")
}
"""Module of each suite; imported when it is asked for."""


@dataclass(frozen=True)
class Form:
    """One way to compute a case, ready to be called again and again on the same inputs."""

    run: Callable[[], object]
    """What is timed."""
    flops: float | None = None
    """Floating-point operations of one call, counted as the suite documents."""
    error: Callable[[], float] | None = None
    """Relative error of the results against a reference in float64."""


class Suite(Protocol):
    """Cases, and the forms that compete on each."""

    def cases(self, config: BenchConfig) -> list[Case]:
        """What to measure, in order. Raises ``UserError`` for sizes that cannot be."""

    def warmup_case(self, case: Case) -> Case:
        """A tiny case that loads whatever ``case`` needs, so that memory readings miss it."""

    def groups(self, config: BenchConfig, device: torch.device) -> dict[str, list[str]]:
        """Names of the forms, in groups that share code; what is missing is logged and left out."""

    def forms(
        self, names: list[str], case: Case, config: BenchConfig, device: torch.device
    ) -> dict[str, Form]:
        """The named forms on inputs of ``case``."""


@runtime_checkable
class DerivingSuite(Suite, Protocol):
    """A suite whose rows lead to a second table."""

    def derive(self, rows: Sequence["Row"], config: BenchConfig) -> "Derived":
        """What follows from the rows of all cases."""


def find_suite(name: str) -> Suite:
    """The suite called ``name``.

    Raises:
        UserError: if there is none.
    """
    if name not in SUITES:
        known = ", ".join(SUITES)
        raise UserError(
            f"there is no suite '{name}'{did_you_mean(name, SUITES)}", where="suite", expected=known
        )
    return cast(Suite, importlib.import_module(SUITES[name]).SUITE)
