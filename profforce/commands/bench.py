"""``profforce bench``."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profforce.commands.shared import BenchOverrides
from profforce.errors import UserError
from profforce.groups import config_groups

if TYPE_CHECKING:
    from profforce.config import BenchConfig

PICTURES = (".png", ".svg", ".pdf")


def bench(
    overrides: BenchOverrides = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is stdout.")
    ] = None,
    markdown_to: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE|-", help="Write a Markdown table.")
    ] = None,
    csv_to: Annotated[
        str | None, typer.Option("--csv", metavar="FILE|-", help="Write CSV.")
    ] = None,
    plot_to: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the times.")
    ] = None,
) -> None:
    """Time every form of a computation in turn, with its memory and error; prints a table."""
    from profforce.display import log_to_stderr, show_bench, work_display

    texts = {"json": json_to, "markdown": markdown_to, "csv": csv_to}
    _check_outputs([*filter(None, texts.values())], plot_to)
    config = _bench_settings(list(overrides or []))
    log_to_stderr()
    with work_display() as progress:
        from profforce.bench.plot import plot
        from profforce.bench.report import WRITERS
        from profforce.bench.run import run_suite
        from profforce.data.files import write_text

        report = run_suite(config, progress)
    try:
        for kind, target in texts.items():
            if target == "-":
                typer.echo(WRITERS[kind](report), nl=False)
            elif target is not None:
                write_text(Path(target), WRITERS[kind](report))
        if plot_to is not None:
            plot(report, plot_to)
    finally:  # what was measured is not lost with a file that cannot be written
        if "-" not in texts.values():
            show_bench(report)


def _check_outputs(texts: list[str], picture: Path | None) -> None:
    """Refuse before measuring what could not be written after it."""
    if texts.count("-") > 1:
        raise UserError("only one of --json, --markdown and --csv can go to stdout")
    for path in [*(Path(text) for text in texts if text != "-"), *filter(None, [picture])]:
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UserError("cannot be written", where=path, remedy="make its folder first")
    if picture is not None and picture.suffix not in PICTURES:
        raise UserError(
            "is no picture", where=f"--plot {picture}", expected=f"a name in {', '.join(PICTURES)}"
        )


def _bench_settings(words: list[str]) -> "BenchConfig":
    """Settings of the bench, and of the training that some suites time: one list of overrides."""
    from profforce.bridge import compose
    from profforce.config import TRAINING_SUITES, BenchConfig, TrainConfig, TrainingBenchConfig

    own = [word for word in words if not _is_of_training(word)]
    config = compose(BenchConfig, "bench", own)
    if config.suite not in TRAINING_SUITES:
        return compose(BenchConfig, "bench", words)  # refuses those of a training
    given = [word for word in words if _is_of_training(word)]
    sections = [_section(word) for word in given]
    if "experiment" not in sections:
        given = ["experiment=demo", *given]
    training = compose(TrainConfig, "train", [*given, f"seed={config.seed}"])
    return TrainingBenchConfig(
        **vars(config), training=training, words=given, from_corpus="data" in sections
    )


def _is_of_training(word: str) -> bool:
    from profforce.config import BenchConfig, TrainConfig

    names = {f.name for f in fields(TrainConfig)} - {f.name for f in fields(BenchConfig)}
    return _section(word) in names | set(config_groups())


def _section(word: str) -> str:
    """``model`` of ``model.width=64`` and of ``model=softmax``."""
    return re.split(r"[.=@]", word.lstrip("+~"), maxsplit=1)[0]
