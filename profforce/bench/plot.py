"""A picture of a benchmark: milliseconds of every form, a panel a case."""

from pathlib import Path

from profforce.bench.report import YARDSTICK, Report, case_name, number

BAR_INCHES, PANEL_INCHES = 0.32, 4.2
OURS, OTHERS = "#1b6ca8", "#9aa5b1"


def plot(report: Report, path: Path) -> None:
    """Write ``path``: bars on a logarithmic axis, their figures beside them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = list({case_name(row.case): row.case for row in report.rows}.values())
    rows = [[r for r in report.rows if r.case == case and r.form != YARDSTICK] for case in cases]
    height = 1.2 + BAR_INCHES * max(map(len, rows))
    figure = Figure(figsize=(PANEL_INCHES * len(cases), height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for panel, case, shown in zip(panels, cases, rows, strict=True):
        places = range(len(shown))
        times = [row.ms_median for row in shown]
        colours = [OURS if row.form.startswith("ours") else OTHERS for row in shown]
        panel.barh(places, times, color=colours, xerr=[row.ms_iqr / 2 for row in shown])
        panel.set_yticks(places, [row.form for row in shown])
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.set_xlim(min(times) / 3, max(times) * 4)
        for place, row in zip(places, shown, strict=True):
            panel.annotate(
                number(row.ms_median),
                (row.ms_median + row.ms_iqr / 2, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        panel.set_title(case_name(case), fontsize=9)
        panel.set_xlabel("ms (median, bar: half the IQR)", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"suite {report.rows[0].suite}: {_machine(report)}", fontsize=9)
    figure.savefig(path, dpi=150)


def _machine(report: Report) -> str:
    known = report.environment
    device = known["device"] if known["device"] != "cpu" else known["cpu"]
    return f"{device}, {known['threads']} threads, {known['dtype']}, torch {known['torch']}"
