"""``profforce export``."""

from pathlib import Path
from typing import Annotated

import typer

from profforce.commands.shared import ExportOverrides, print_json
from profforce.errors import UserError

USED = (
    "checkpoint",
    "stop_threshold",
    "tail_frames",
    "min_seconds_per_symbol",
    "max_seconds_per_symbol",
)
"""Settings of sample that a written graph keeps; the others belong to who runs it."""


def export(
    run: Annotated[Path, typer.Option(help="Folder of a training run.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the graphs.")],
    overrides: ExportOverrides = None,
) -> None:
    """Write a run as ONNX graphs, to speak without torch; prints one JSON line.

    Settings are some of sample's: checkpoint, stop_threshold, tail_frames, seconds per symbol.
    """
    from profforce.bridge import compose
    from profforce.config import SampleConfig
    from profforce.display import log_to_stderr, work_display

    words = list(overrides or [])
    cfg = compose(SampleConfig, "sample", words)
    _refuse_unused(words)
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


def _refuse_unused(words: list[str]) -> None:
    from profforce.explain import key_of

    for word in words:
        if key_of(word) not in USED:
            raise UserError(
                "this setting means nothing to an export",
                where=f"override '{word}'",
                expected=", ".join(USED),
                remedy="leave it out",
            )
