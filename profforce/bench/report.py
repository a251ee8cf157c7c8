"""Results of a benchmark, as JSON, Markdown and CSV."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
class Report:
    """What was measured, and where."""

    environment: Environment
    rows: list[Row]

    def share(self, row: Row) -> float | None:
        """The row's rate as a part of the yardstick's in the same case."""
        rates = [r.gflops for r in self.rows if (r.case, r.form) == (row.case, YARDSTICK)]
        return row.gflops / rates[0] if row.gflops and rates and rates[0] else None


def to_json(report: Report) -> str:
    """``{"environment": {...}, "rows": [...]}``, a row a line's worth of figures."""
    rows = [
        {
            "suite": row.suite,
            "case": row.case,
            "form": row.form,
            "ms_median": _rounded(row.ms_median),
            "ms_iqr": _rounded(row.ms_iqr),
            "peak_mib": _rounded(row.peak_mib),
            "error": _rounded(row.error),
        }
        for row in report.rows
    ]
    return json.dumps({"environment": report.environment, "rows": rows}, indent=2) + "\n"


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
        lines.writerow([row.suite, *given, row.form, *map(_rounded, values)])
    return text.getvalue()


def to_markdown(report: Report) -> str:
    """A table for documents, and the environment under it."""
    lines = [_line(COLUMNS), _line(["---", "---", *["---:"] * (len(COLUMNS) - 2)])]
    lines += [_line(cells(report, row)) for row in report.rows]
    facts = ", ".join(
        f"{key} {value}" for key, value in report.environment.items() if value is not None
    )
    return "\n".join([*lines, "", facts]) + "\n"


WRITERS: dict[str, Callable[[Report], str]] = {
    "json": to_json,
    "markdown": to_markdown,
    "csv": to_csv,
}


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


def number(value: float | None) -> str:
    """Three significant figures without an exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.5f}"


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
