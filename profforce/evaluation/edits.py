"""How a sequence that was said differs from the one that should have been.

Edit distance (Wagner and Fischer 1974) with its operations; N expected and H heard symbols.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

KEPT, SUBSTITUTED, DELETED, INSERTED = "kept", "substituted", "deleted", "inserted"
EDIT, OPEN = 1000, 1
"""Cost of an operation; opening a gap costs a trifle, so that gaps are few and long. Whole numbers,
so that ties are ties."""
INFINITE = 10**12
GAPS = (INSERTED, DELETED, KEPT)
"""In the order of preference, seen from the end: what can be kept is kept as early as possible, as
one who listens would."""

Table = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Operation:
    """One step of the alignment."""

    kind: str
    expected: int
    """Position in the expected sequence, at an insertion that of the next symbol."""
    heard: int
    """Position in the heard sequence, at a deletion that of the next symbol."""


@dataclass(frozen=True)
class Edits:
    """Counts of what went wrong."""

    deleted: int
    inserted: int
    repeated: int
    """Of the inserted, how many say again what stands right before or after them."""
    substituted: int
    missing_tail: int
    """Of the deleted, how many were the last of the sequence."""
    extra_tail: int
    """Of the inserted, how many came after the last expected symbol."""

    @property
    def total(self) -> int:
        """Deletions, insertions and substitutions."""
        return self.deleted + self.inserted + self.substituted


def edits_between(expected: Sequence[str], heard: Sequence[str]) -> Edits:
    """Count the fewest operations that make ``heard`` of ``expected``."""
    operations = align(expected, heard)
    kinds = [operation.kind for operation in operations]
    return Edits(
        deleted=kinds.count(DELETED),
        inserted=kinds.count(INSERTED),
        repeated=_repeated(operations, heard),
        substituted=kinds.count(SUBSTITUTED),
        missing_tail=_trailing(kinds, DELETED),
        extra_tail=_trailing(kinds, INSERTED),
    )


def align(expected: Sequence[str], heard: Sequence[str]) -> list[Operation]:
    """A cheapest alignment, from the first symbol to the last."""
    rows, columns = len(expected) + 1, len(heard) + 1
    cost = np.full((len(GAPS), rows, columns), INFINITE)  # by the last operation, as in GAPS
    source = np.zeros_like(cost)
    cost[2, 0, 0] = 0
    for i in range(rows):
        for j in range(columns):
            if i and j:
                price = 0 if expected[i - 1] == heard[j - 1] else EDIT
                source[2, i, j] = came = int(cost[:, i - 1, j - 1].argmin())
                cost[2, i, j] = cost[came, i - 1, j - 1] + price
            for gap, (a, b) in ((0, (i, j - 1)), (1, (i - 1, j))):
                if a >= 0 and b >= 0:
                    prices = cost[:, a, b] + EDIT + OPEN * (np.arange(len(GAPS)) != gap)
                    source[gap, i, j] = came = int(prices.argmin())
                    cost[gap, i, j] = prices[came]
    return _traced(expected, heard, cost, source)


def _traced(
    expected: Sequence[str], heard: Sequence[str], cost: Table, source: Table
) -> list[Operation]:
    i, j = len(expected), len(heard)
    last = int(cost[:, i, j].argmin())
    operations = []
    while i or j:
        came = int(source[last, i, j])
        kind = GAPS[last]
        i, j = i - (kind != INSERTED), j - (kind != DELETED)
        if kind == KEPT and expected[i] != heard[j]:
            kind = SUBSTITUTED
        operations.append(Operation(kind, i, j))
        last = came
    return operations[::-1]


def _repeated(operations: Sequence[Operation], heard: Sequence[str]) -> int:
    count = 0
    for kind, group in groupby(operations, key=lambda operation: operation.kind):
        block = list(group)
        if kind != INSERTED:
            continue
        start, stop = block[0].heard, block[-1].heard + 1
        if any(_echoes(heard, start, stop, p) for p in range(1, stop - start + 1)):
            count += stop - start
    return count


def _echoes(heard: Sequence[str], start: int, stop: int, period: int) -> bool:
    """Whether ``heard[start:stop]`` says again what stands ``period`` before or after it."""
    block = range(start, stop)
    before = start >= period and all(heard[k] == heard[k - period] for k in block)
    after = stop + period <= len(heard) and all(heard[k] == heard[k + period] for k in block)
    return before or after


def _trailing(kinds: Sequence[str], wanted: str) -> int:
    count = 0
    for kind in reversed(kinds):
        if kind != wanted:
            break
        count += 1
    return count
