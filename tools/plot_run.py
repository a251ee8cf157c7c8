"""Plot a run's losses and its gap meter: python tools/plot_run.py RUN PICTURE.png"""

import argparse
import json
import sys
from collections.abc import Sequence
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
    figure = Figure(figsize=(11, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            axes.plot(*zip(*points, strict=True) if points else ([], []), label=name, linewidth=1)
        axes.set(title=title, xlabel="step")
        axes.legend()
    save_figure(figure, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
