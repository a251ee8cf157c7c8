"""Plot a run's losses and its gap meter: python tools/plot_run.py RUN PICTURE.png"""

import json
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profforce.audio.pictures import save_figure

PANELS = {
    "mel loss": ("loss/mel", "loss/mel_before"),
    "DTW mel distance": ("gap/teacher_forced_dtw", "gap/free_running_dtw"),
    "discriminator": ("gan/accuracy_average", "gan/length_only_accuracy"),
    "self-made samples": ("pool/length_ratio", "pool/stopped_fraction"),
}


def main() -> int:
    """Read ``RUN/metrics.jsonl``, write the picture."""
    run, picture = map(Path, sys.argv[1:3])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(11, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            axes.plot(*zip(*points, strict=True) if points else ([], []), label=name, linewidth=1)
        axes.set(title=title, xlabel="step")
        axes.legend()
    save_figure(figure, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
