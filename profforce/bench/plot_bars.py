"""Bars: times of every form of attention; time and memory of every way to take a training step."""

from collections.abc import Callable, Sequence
from typing import Any

from profforce.bench.report import YARDSTICK, Report, Row, case_name, number

BAR_INCHES, PANEL_INCHES = 0.32, 4.2
OURS, OTHERS = "#1b6ca8", "#9aa5b1"
METHODS = {
    "teacher_forcing": "#9aa5b1",
    "professor_forcing": "#1b6ca8",
    "adversarial": "#e0a030",
    "through_time": "#d1495b",
}
"""Colours of ways to train, by the beginning of a form's name."""
BASELINE = "teacher_forcing"

Value = Callable[[Row], float]


def cases_of(report: Report) -> list[list[Row]]:
    """The rows of each case, the yardstick left out."""
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.form != YARDSTICK:
            found.setdefault(case_name(row.case), []).append(row)
    return list(found.values())


def kernel_bars(figure: Any, report: Report) -> None:
    """Milliseconds of every form on a logarithmic axis, a panel a case."""
    groups = cases_of(report)
    figure.set_size_inches(PANEL_INCHES * len(groups), 1.2 + BAR_INCHES * max(map(len, groups)))
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for panel, rows in zip(panels, groups, strict=True):
        times = [row.ms_median for row in rows]
        colours = [OURS if row.form.startswith("ours") else OTHERS for row in rows]
        _bars(panel, rows, times, colours, [number(time) for time in times], spread=True)
        panel.set_xscale("log")
        panel.set_xlim(min(times) / 3, max(times) * 4)
        panel.set_title(case_name(rows[0].case), fontsize=9)
        panel.set_xlabel("ms (median, bar: half the IQR)", fontsize=8)


def training_bars(figure: Any, report: Report) -> None:
    """Time and memory of a step, with multiples of teacher forcing's; a line of panels a case."""
    groups = cases_of(report)
    known: dict[str, Value] = {"ms a step (median, bar: half the IQR)": lambda row: row.ms_median}
    if any(row.peak_mib for row in report.rows):
        known["MiB beyond weights and optimizer states"] = lambda row: row.peak_mib or 0.0
    height = sum(0.9 + BAR_INCHES * len(rows) for rows in groups)
    figure.set_size_inches(2 + PANEL_INCHES * len(known), 0.4 + height)
    panels = figure.subplots(len(groups), len(known), squeeze=False)
    for line, rows in zip(panels, groups, strict=True):
        for panel, (title, value) in zip(line, known.items(), strict=True):
            first = panel is line[0]
            values = [value(row) for row in rows]
            (base,) = (value(row) for row in rows if row.form == BASELINE)
            labels = [_with_ratio(v, base) for v in values]
            _bars(panel, rows, values, _colours(rows), labels, spread=first)
            panel.set_xlim(0, max(*values, 1e-9) * 1.45)
            panel.set_xlabel(title, fontsize=8)
            if not first:
                panel.set_yticklabels([])
        line[0].set_title(case_name(rows[0].case), fontsize=9, loc="left")


def _with_ratio(value: float, base: float) -> str:
    if not value:
        return "not known"
    return number(value) + (f"  ({value / base:.2f}×)" if base else "")


def _colours(rows: Sequence[Row]) -> list[str]:
    return [
        next((c for name, c in METHODS.items() if row.form.startswith(name)), OTHERS)
        for row in rows
    ]


def _bars(
    panel: Any,
    rows: Sequence[Row],
    values: Sequence[float],
    colours: Sequence[str],
    labels: Sequence[str],
    *,
    spread: bool,
) -> None:
    """Horizontal bars, the first on top, with a label behind each."""
    places = range(len(rows))
    halves = [row.ms_iqr / 2 if spread else 0.0 for row in rows]
    panel.barh(places, values, color=colours, xerr=halves if spread else None)
    panel.set_yticks(places, [row.form for row in rows])
    panel.tick_params(labelsize=8)
    panel.invert_yaxis()
    for place, (value, half, label) in enumerate(zip(values, halves, labels, strict=True)):
        panel.annotate(
            label,
            (value + half, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    panel.spines[["top", "right"]].set_visible(False)
