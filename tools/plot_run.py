"""Plot a run's losses and its gap meter: python tools/plot_run.py RUN PICTURE.png"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from profforce.audio.pictures import save_figure

PANELS = {
    "mel loss": {"loss/mel": "mel", "loss/mel_before": "mel before"},
    "DTW mel distance": {
        "gap/teacher_forced_dtw": "teacher-forced",
        "gap/free_running_dtw": "free-running",
    },
    "mel loss before the postnet": {
        "loss/mel_before": "after recorded frames",
        "imitation/mel": "after self-made ones",
    },
    "discriminator's accuracy": {
        "gan/accuracy_average": "average",
        "gan/length_only_accuracy": "of the length-only control",
    },
    "self-made samples": {
        "pool/length_ratio": "length ratio",
        "pool/stopped_fraction": "stopped fraction",
    },
}
"""Curves with their labels; a panel without its last one's figures is left out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Read ``RUN/metrics.jsonl``, write the picture; 1 if there is no such file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("picture", type=Path, help="PNG to write")
    options = parser.parse_args(argv)
    metrics = options.run / "metrics.jsonl"
    if not metrics.is_file():
        print(f"error: no metrics of a run; got no {metrics}", file=sys.stderr)
        return 1
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    logged = {name for row in rows for name, value in row.items() if value is not None}
    panels = {title: names for title, names in PANELS.items() if [*names][-1] in logged}
    lines = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 3 * lines), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    start = professor_forcing_start(options.run)
    places = list(figure.subplots(lines, 2, squeeze=False).flat)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, names) in zip(places, panels.items(), strict=False):
        for name, label in names.items():
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            steps, values = zip(*points, strict=True) if points else ((), ())
            axes.plot(steps, smoothed(values), label=label, linewidth=1)
        if start is not None:
            axes.axvline(start, color="grey", linestyle=":", label="professor forcing begins")
        axes.set(xlabel="step", ylabel=title)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=7)
    save_figure(figure, options.picture)
    print(options.picture)
    return 0


def professor_forcing_start(run: Path) -> int | None:
    """Step at which the run began to train on its own outputs, None if it never did."""
    settings = run / ".hydra" / "config.yaml"
    method = OmegaConf.load(settings).method if settings.is_file() else None
    wanted = method is not None and method.name == "professor_forcing"
    return int(method.start_step) if wanted else None


def smoothed(values: Sequence[float]) -> list[float]:
    """Running mean over a fiftieth of the values, so that the trend shows."""
    width = max(len(values) // 50, 1)
    starts = [max(i - width + 1, 0) for i in range(len(values))]
    return [fmean(values[start : i + 1]) for i, start in enumerate(starts)]


if __name__ == "__main__":
    sys.exit(main())
