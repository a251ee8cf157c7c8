"""What several commands use: overrides and their completion, output for people and for programs."""

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from profforce.groups import config_groups
from profforce.jobs import rank


def _complete_train(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("train", ctx, incomplete)


def _complete_sample(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("sample", ctx, incomplete)


def _complete_bench(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("bench", ctx, incomplete)


def _complete_evaluate(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("evaluate", ctx, incomplete)


def _complete(name: str, ctx: typer.Context, incomplete: str) -> list[str]:
    from profforce.completion import at_equals, complete

    words = list(ctx.params.get("overrides") or [])
    return complete(name, [*words, "="] if at_equals() else words, incomplete)


def group_list() -> str:
    """The settings groups and their choices in one line, for the help."""
    rows = [f"[b]{name}[/b]={'|'.join(choices)}" for name, choices in config_groups().items()]
    return "Config groups: " + "  ".join(rows)


def _overrides(examples: str, completion: Callable[[typer.Context, str], list[str]]) -> Any:
    return typer.Argument(
        metavar="[KEY=VALUE]...", help=f"Settings: {examples}.", autocompletion=completion
    )


TrainOverrides = Annotated[
    list[str] | None,
    _overrides(
        "[b]model=softmax[/b], [b]trainer.steps=100[/b], [b]experiment=demo[/b]", _complete_train
    ),
]
CorpusOverrides = Annotated[
    list[str] | None,
    _overrides(
        "[b]data.root=/corpora/mine[/b], [b]data.valid_fraction=0.1[/b], [b]data.trim_db=60[/b]",
        _complete_train,
    ),
]
BenchOverrides = Annotated[
    list[str] | None,
    _overrides(
        r"[b]suite=kernel[/b], [b]threads=1[/b], [b]shapes=\[8x4x500x32][/b]", _complete_bench
    ),
]
SampleOverrides = Annotated[
    list[str] | None,
    _overrides("[b]seed=1[/b], [b]checkpoint=best[/b], [b]vocoder=hifigan[/b]", _complete_sample),
]
ExportOverrides = Annotated[
    list[str] | None,
    _overrides("[b]checkpoint=best[/b], [b]stop_threshold=0.6[/b]", _complete_sample),
]
EvaluateOverrides = Annotated[
    list[str] | None,
    _overrides(
        "[b]num_utterances=8[/b], [b]checkpoint=best[/b], [b]seed=1[/b]", _complete_evaluate
    ),
]


def help_if_alone(ctx: typer.Context) -> None:
    """A command group that was called without a command shows its help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def print_json(row: object, *, err: bool = False) -> None:
    """One line of JSON to stdout or stderr, as readable as its encoding allows."""
    readable = "utf" in ((sys.stderr if err else sys.stdout).encoding or "").lower()
    typer.echo(json.dumps(row, default=str, ensure_ascii=not readable), err=err)


def who() -> str:
    """Which process complains, where several were started; nothing for the first."""
    return f"process {rank()}: " if rank() else ""


def say(text: str, style: str = "") -> None:
    """One line to stderr; a rich console obeys NO_COLOR and pipes."""
    from rich.console import Console

    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be printed
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)
