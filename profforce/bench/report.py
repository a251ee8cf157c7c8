"""Results of a benchmark, as JSON, Markdown and CSV."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from profforce.bench.machine import Environment
from profforce.bench.suite import Case

YARDSTICK = "gemm_1024"
"""Form whose rate the others are a share of, where the suite has it."""
COLUMNS = ("case", "form", "ms", "IQR", "MiB", "error", "GFLOP/s", "of GEMM")


@dataclass(frozen=True)
class Row:
    """One form on one case."""

    suite: str
    case: Case
    form: str
    ms_median: float
    ms_iqr: float
    peak_mib: float | None
    """Most memory beyond the inputs; None if not measured."""
    error: float | None
    """Relative error against float64; None if there is no reference."""
    flops: float | None = None

    @property
    def gflops(self) -> float | None:
        """Thousand million operations a second."""
        return None if self.flops is None else self.flops / self.ms_median / 1e6


@dataclass(frozen=True)
class Derived:
    """What follows from the rows: a table of its own."""

    title: str
    columns: tuple[str, ...]
    lines: list[list[str]]
    """Cells as people read them, under ``columns``."""
    data: dict[str, Any]
    """The same for programs; its keys stand beside ``rows`` in the JSON."""
    advice: str = ""
    """What to do about it, in a sentence or two."""


@dataclass(frozen=True)
class Report:
    """What was measured, and where."""

    environment: Environment
    rows: list[Row]
    derived: Derived | None = None

    def share(self, row: Row) -> float | None:
        """The row's rate as a part of the yardstick's in the same case."""
        rates = [r.gflops for r in self.rows if (r.case, r.form) == (row.case, YARDSTICK)]
        return row.gflops / rates[0] if row.gflops and rates and rates[0] else None


def to_json(report: Report) -> str:
    """``{"environment": {...}, "rows": [...]}`` and what the suite derived from the rows."""
    rows = [
        {
            "suite": row.suite,
            "case": row.case,
            "form": row.form,
            "ms_median": rounded(row.ms_median),
            "ms_iqr": rounded(row.ms_iqr),
            "peak_mib": rounded(row.peak_mib),
            "error": rounded(row.error),
        }
        for row in report.rows
    ]
    derived = report.derived.data if report.derived else {}
    found = {"environment": report.environment, "rows": rows, **derived}
    return json.dumps(found, indent=2) + "\n"


def to_csv(report: Report) -> str:
    """A line a row: sizes as columns of their own, then the figures."""
    sizes = list(dict.fromkeys(name for row in report.rows for name in row.case))
    figures = ["ms_median", "ms_iqr", "peak_mib", "error", "gflops", "share_of_gemm"]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["suite", *sizes, "form", *figures])
    for row in report.rows:
        values = [row.ms_median, row.ms_iqr, row.peak_mib, row.error, row.gflops, report.share(row)]
        given = [row.case.get(name, "") for name in sizes]
        lines.writerow([row.suite, *given, row.form, *map(rounded, values)])
    return text.getvalue()


def to_markdown(report: Report) -> str:
    """A table for documents, and the environment under it."""
    lines = _table(*filled(report), left=2)
    if derived := report.derived:
        lines += ["", f"{derived.title}:", "", *_table(derived.columns, derived.lines, left=1)]
        lines += ["", derived.advice] if derived.advice else []
    facts = ", ".join(
        f"{key} {value}" for key, value in report.environment.items() if value is not None
    )
    return "\n".join([*lines, "", facts]) + "\n"


WRITERS: dict[str, Callable[[Report], str]] = {
    "json": to_json,
    "markdown": to_markdown,
    "csv": to_csv,
}


def filled(report: Report) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the table, without the columns that this suite leaves empty."""
    rows = [cells(report, row) for row in report.rows]
    kept = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    return [COLUMNS[i] for i in kept], [[row[i] for i in kept] for row in rows]


def cells(report: Report, row: Row) -> list[str]:
    """The row as people read it, under :data:`COLUMNS`."""
    share = report.share(row)
    return [
        case_name(row.case),
        row.form,
        number(row.ms_median),
        number(row.ms_iqr),
        number(row.peak_mib),
        "" if row.error is None else f"{row.error:.1e}",
        number(row.gflops),
        "" if share is None or row.form == YARDSTICK else f"{share:.0%}",
    ]


def case_name(case: Case) -> str:
    """``"B=8 H=4"``."""
    return " ".join(f"{name}={size}" for name, size in case.items())


def case_names(rows: Sequence[Row]) -> list[str]:
    """A name for each case of the rows, of those sizes alone in which they differ."""
    cases = list({case_name(row.case): row.case for row in rows}.values())
    varied = [name for name in cases[0] if len({case.get(name) for case in cases}) > 1]
    return [case_name({n: case[n] for n in varied if n in case} or case) for case in cases]


def pivot(rows: Sequence[Row], cells: Sequence[str]) -> list[list[str]]:
    """A line a form with a cell a case, in the order of :func:`case_names`; empty if not run."""
    found = {(row.form, case_name(row.case)): cell for row, cell in zip(rows, cells, strict=True)}
    cases = dict.fromkeys(case for _, case in found)
    forms = dict.fromkeys(form for form, _ in found)
    return [[form, *(found.get((form, case), "") for case in cases)] for form in forms]


def number(value: float | None) -> str:
    """Three significant figures without an exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.5f}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Lines of Markdown; all but the first ``left`` columns are figures."""
    rule = ["---"] * left + ["---:"] * (len(titles) - left)
    return [_line(titles), _line(rule), *map(_line, rows)]


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def rounded(value: float | None) -> float | None:
    """Five significant figures, for programs."""
    return None if value is None else float(f"{value:.5g}")
