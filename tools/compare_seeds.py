"""Two methods by reports of ``profforce evaluate``, several seeds of each, paired by seed and text.

    profforce evaluate --run RUN listen=true --json RUN.json       # for every seed of both
    python tools/compare_seeds.py --base A0.json A1.json --other B0.json B1.json [--json -]

Prints each figure's mean of both and the difference, with 95 % bootstrap intervals that draw seeds
and utterances anew. ``NAME_gap`` is what a figure is larger free-running than teacher-forced.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from profforce.errors import UserError
from profforce.evaluation.statistics import Estimate, Values, difference_of, mean_of

FORCED = "_forced"
FIGURES = (
    *("failed", "mcd_free_db", "mcd_gap_db", "mcd_floor_db", "mcd_excess_db"),
    *("word_errors", "character_errors"),
)
GAPS = ("word_errors", "character_errors")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if compared, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    try:
        found = compared([rows_of(path) for path in options.base], [*map(rows_of, options.other)])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("| | base | other | difference |\n|---|---:|---:|---:|")
    for name, row in found.items():
        cells = (_cell(row[part]) for part in ("base", "other", "difference"))
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


def compared(
    base: Sequence[Sequence[dict[str, Any]]], other: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Estimates of every figure that all have: base, other and difference.

    Args:
        base: rows of each seed.
        other: the same texts and as many seeds, in the same order.

    Raises:
        UserError: if seeds or texts are not the same.
    """
    texts = [[row["text"] for row in rows] for rows in (*base, *other)]
    if len(base) != len(other) or any(one != texts[0] for one in texts):
        raise UserError(
            "the reports are not of the same texts and as many seeds",
            got=f"{len(base)} and {len(other)} reports of {[len(one) for one in texts]} texts",
            remedy="evaluate all runs with the same settings",
        )
    found = {}
    for name in _names():
        values = _table((*base, *other), name)
        if not values.size:
            continue
        first, second = values[: len(base)], values[len(base) :]
        estimates = (mean_of(first), mean_of(second), difference_of(second, first))
        parts = ("base", "other", "difference")
        found[name] = {p: asdict(e) for p, e in zip(parts, estimates, strict=True)}
    return found


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The utterances of a report of one run."""
    try:
        (run,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return list(run["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "not a report of one run",
            where=path,
            got=f"{type(error).__name__} {error}",
            expected="what profforce evaluate or tools/second_readings.py wrote with --json",
        ) from error


def _names() -> list[str]:
    gaps = [name for one in GAPS for name in (f"{one}{FORCED}", f"{one}_gap")]
    return [*FIGURES, *gaps]


def _table(seeds: Sequence[Sequence[dict[str, Any]]], name: str) -> Values:
    """``[seeds, utterances]`` of one figure, of the utterances that have it in every seed."""
    columns = [
        column
        for column in zip(*seeds, strict=True)
        if all(_value(row, name) is not None for row in column)
    ]
    return np.array([[_value(row, name) for row in column] for column in columns]).T


def _value(row: dict[str, Any], name: str) -> float | None:
    if not name.endswith("_gap"):
        return row.get(name)
    free, forced = (row.get(name.removesuffix("_gap") + end) for end in ("", FORCED))
    return None if free is None or forced is None else free - forced


def _cell(figures: dict[str, float]) -> str:
    estimate = Estimate(**figures)
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("base", "other"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", required=True, metavar="JSON")
    parser.add_argument("--json", type=Path, help="file for the estimates")
    return parser


if __name__ == "__main__":
    sys.exit(main())
