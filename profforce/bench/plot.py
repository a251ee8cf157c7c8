"""A picture of a benchmark: what one would rather look at than its table, a kind for each suite."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from profforce.bench.plot_bars import kernel_bars, training_bars
from profforce.bench.plot_lines import attention_lines, decode_lines, epoch_lines
from profforce.bench.report import Report
from profforce.data.files import aside
from profforce.errors import UserError

Draw = Callable[[Any, Report], None]
"""Draws a report into an empty matplotlib figure, whose size it sets."""

PLOTS: dict[str, Draw] = {
    "kernel": kernel_bars,
    "attention": attention_lines,
    "decode": decode_lines,
    "train": training_bars,
    "epoch": epoch_lines,
}


def plot(report: Report, path: Path) -> None:
    """Write ``path``; a suite without a picture of its own gets bars of its times.

    Raises:
        UserError: if it cannot be written; nothing half-drawn is left.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    suite = report.rows[0].suite
    PLOTS.get(suite, kernel_bars)(figure, report)
    figure.suptitle(f"suite {suite}: {_machine(report)}", fontsize=9)
    part = aside(path)
    try:
        figure.savefig(part, dpi=150, format=path.suffix.lstrip("."))
        part.replace(path)
    except OSError as err:
        raise UserError("the picture cannot be written", where=path, got=err.strerror) from err
    finally:
        part.unlink(missing_ok=True)


def _machine(report: Report) -> str:
    known = report.environment
    device = known["device"] if known["device"] != "cpu" else known["cpu"]
    parts = [device, f"{known['threads']} threads", known["dtype"], f"torch {known['torch']}"]
    return ", ".join(str(part) for part in [*parts, *filter(None, [known.get("training")])])
