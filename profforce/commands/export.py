"""``profforce export``."""

from pathlib import Path
from typing import Annotated

import typer

from profforce.commands.shared import ExportOverrides, print_json


def export(
    run: Annotated[Path, typer.Option(help="Folder of a training run.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the graphs.")],
    overrides: ExportOverrides = None,
) -> None:
    """Write a run as ONNX graphs, to speak without torch; prints one JSON line.

    Settings are those of sample: checkpoint, stop_threshold, tail_frames, seconds per symbol.
    """
    from profforce.bridge import compose
    from profforce.config import SampleConfig
    from profforce.display import log_to_stderr, work_display

    cfg = compose(SampleConfig, "sample", list(overrides or []))
    log_to_stderr()
    with work_display() as progress:
        from profforce.export.write import export as write

        progress("exporting", 0, 1)
        done = write(run, out, cfg)
        progress("exporting", 1, 1)
    print_json(
        {
            "folder": str(done.folder),
            "checkpoint": done.checkpoint,
            "megabytes": round(done.num_bytes / 1e6, 3),
            "largest_difference": done.difference,
        }
    )
