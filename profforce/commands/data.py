"""``profforce data``: make or fetch a corpus."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from profforce.commands.shared import TrainOverrides, help_if_alone, print_json
from profforce.errors import UserError, did_you_mean
from profforce.groups import config_groups

data_app = typer.Typer(invoke_without_command=True)


@data_app.callback()
def data(ctx: typer.Context) -> None:
    """Make or fetch a corpus."""
    help_if_alone(ctx)


@data_app.command("prepare")
def prepare(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="|".join(config_groups()["data"]),
            autocompletion=lambda: config_groups()["data"],
        ),
    ],
    overrides: TrainOverrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Make or fetch the corpus NAME and cache its mel features; can be interrupted and repeated.

    NAME stands for data=NAME; all other settings are those of profforce train.
    """
    from profforce.bridge import compose
    from profforce.config import TrainConfig
    from profforce.display import log_to_stderr, preparation_summary, work_display

    words = [f"data={_corpus_name(name, overrides or [])}", *(overrides or [])]
    cfg = compose(TrainConfig, "train", words)
    log_to_stderr()
    with work_display() as progress:
        from profforce.data.prepare import prepare as run

        with _folders_usable():
            report = run(cfg.data, cfg.text, cfg.mel, progress)
    if as_json:
        print_json({**asdict(report), "num_utterances": report.num_utterances})
    else:
        typer.echo(preparation_summary(report))


@contextmanager
def _folders_usable() -> Iterator[None]:
    """A folder that cannot be used, or a full disk, is the user's to mend."""
    try:
        yield
    except FileNotFoundError:  # no folder's fault: whoever writes makes the folders first
        raise
    except OSError as err:
        if err.filename is None and err.errno != errno.ENOSPC:  # a full disk names no file
            raise
        raise UserError(
            "the corpus cannot be written" if err.filename is None else "cannot be used",
            where=err.filename,
            got=err.strerror,
            remedy="choose other folders by data.root and data.cache",
        ) from err


def _corpus_name(name: str, overrides: Sequence[str]) -> str:
    names = config_groups()["data"]
    if name not in names:
        raise UserError(
            f"there is no corpus '{name}'{did_you_mean(name, names)}", expected="|".join(names)
        )
    for word in overrides:
        if word.lstrip("+~").startswith("data="):
            raise UserError(f"NAME is '{name}' already; leave out '{word}'")
    return name
