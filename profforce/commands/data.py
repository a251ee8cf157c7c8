"""``profforce data``: make or fetch a corpus, find what is wrong with one."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profforce.commands.shared import CorpusOverrides, help_if_alone, print_json
from profforce.errors import UserError, did_you_mean
from profforce.groups import config_groups

if TYPE_CHECKING:
    from profforce.data.check.run import CheckReport

data_app = typer.Typer(invoke_without_command=True)


@data_app.callback()
def data(ctx: typer.Context) -> None:
    """Make or fetch a corpus, or find what is wrong with one."""
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
    overrides: CorpusOverrides = None,
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


@data_app.command("check")
def check(
    overrides: CorpusOverrides = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every place, not the first few.")
    ] = False,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Look at the manifest alone, at no audio.")
    ] = False,
    json_to: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the report as JSON, - to stdout."),
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(
            "--fix", metavar="OUT", help="Write a corrected copy of the manifest to the file OUT."
        ),
    ] = None,
) -> None:
    """Find everything that is wrong with a corpus, with file and line; changes nothing.

    A corpus is named as for training: data=NAME, data.root=FOLDER. Exit code 1 if training would
    refuse the corpus, 0 otherwise.
    """
    from profforce.data.check.mend import mend, refuse_existing

    if fix is not None:
        refuse_existing(fix)
    report = _checked(overrides or [], show_all, text_only)
    try:
        if fix is not None:
            report.mended = mend(report.findings, fix)
    finally:
        _tell(report, json_to, show_all)
    if not report.is_usable:
        raise typer.Exit(1)


@data_app.command("pack")
def pack(
    overrides: CorpusOverrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the tar files.")] = Path("shards"),
    samples: Annotated[int, typer.Option("--samples", help="Utterances in a tar file.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Pack a corpus into tar files for data.shards=FOLDER, in random order (seed=0).

    A corpus is named as for training: data=NAME, data.root=FOLDER. Nothing else is needed to train
    from the tar files: mels are computed as they are read.
    """
    from profforce.bridge import compose
    from profforce.config import TrainConfig
    from profforce.display import log_to_stderr, work_display

    cfg = compose(TrainConfig, "train", _corpus_words(overrides or []))
    log_to_stderr()
    with work_display() as progress, _folders_usable():
        from profforce.data.webdata_pack import pack as run

        report = run(cfg.data, cfg.mel, out, samples=samples, seed=cfg.seed, progress=progress)
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(
            f"{report.num_utterances} utterances in {report.num_shards} tar files, "
            f"{report.mebibytes:.1f} MiB: data.shards={report.folder}"
        )


def _checked(overrides: Sequence[str], show_all: bool, text_only: bool) -> "CheckReport":
    from profforce.bridge import compose
    from profforce.config import TrainConfig
    from profforce.data.check.findings import KEPT
    from profforce.data.check.run import check_corpus
    from profforce.display import log_to_stderr, work_display

    cfg = compose(TrainConfig, "train", _corpus_words(overrides))
    log_to_stderr()
    with work_display() as progress:
        return check_corpus(
            cfg.data,
            cfg.text,
            cfg.mel,
            with_audio=not text_only,
            keep=None if show_all else KEPT,
            progress=progress,
        )


def _tell(report: "CheckReport", json_to: str | None, show_all: bool) -> None:
    from profforce.data.check.run import write_report
    from profforce.display import show_check

    if json_to == "-":
        print_json(report.as_json())
        return
    if json_to is not None:
        write_report(report, Path(json_to))
    show_check(report, show_all=show_all)


def _corpus_words(overrides: Sequence[str]) -> list[str]:
    """Overrides with a bare name as ``data=NAME``, and ``data=custom`` for a folder alone."""
    names = config_groups()["data"]
    words = [f"data={word}" if word in names else word for word in overrides]
    keys = [word.lstrip("+~").split("=")[0] for word in words]
    return ["data=custom", *words] if "data.root" in keys and "data" not in keys else words


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
