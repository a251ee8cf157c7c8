"""Command line of profforce: Typer outside, Hydra inside. Heavy imports wait for their command."""

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, cast

import typer

from profforce import __version__
from profforce.errors import UserError, did_you_mean
from profforce.groups import config_groups
from profforce.lines import texts_to_speak

if TYPE_CHECKING:
    from profforce.config import BenchConfig

PICTURES = (".png", ".svg", ".pdf")

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Base of Typer's usage errors, in whichever click Typer brings along."""

app = typer.Typer(
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(invoke_without_command=True)
app.add_typer(data_app, name="data")


class Show(StrEnum):
    """Which part of the composed settings to print."""

    job = "job"
    hydra = "hydra"
    all = "all"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0 done; 1 a fault, with its traceback; 2 what a person can mend, in one line; 130 and 143 after
    SIGINT and SIGTERM. A signal during training leaves as ``SystemExit`` once the run is saved.
    """
    command = typer.main.get_command(app)
    try:
        with _sigterm_unwinds():
            code = command.main(
                args=None if argv is None else list(argv),
                prog_name="profforce",
                standalone_mode=False,
            )
    except UserError as err:
        return _refuse("; ".join([str(err), *getattr(err, "__notes__", [])]))
    except UsageError as err:
        return _refuse(_usage_line(cast(typer.BadParameter, err)))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader of a pipe went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return code if isinstance(code, int) else 0


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM run the ``finally`` blocks, as Ctrl-C does; training has its own handler."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread: signals are the caller's affair
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse(message: str) -> int:
    say(f"error: {message}", "red")
    return 2


def _usage_line(err: typer.BadParameter) -> str:
    """Typer's complaint in one line, with the way to the help."""
    text = " ".join(err.format_message().split()).rstrip(".")
    command = err.ctx.command_path if err.ctx else "profforce"
    return f"{text[:1].lower()}{text[1:]}; see '{command} --help'"


def say(text: str, style: str = "") -> None:
    """One line to stderr; a rich console obeys NO_COLOR and pipes."""
    from rich.console import Console

    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be printed
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _complete_train(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("train", ctx, incomplete)


def _complete_sample(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("sample", ctx, incomplete)


def _complete_bench(ctx: typer.Context, incomplete: str) -> list[str]:
    return _complete("bench", ctx, incomplete)


def _complete(name: str, ctx: typer.Context, incomplete: str) -> list[str]:
    from profforce.completion import at_equals, complete

    words = list(ctx.params.get("overrides") or [])
    return complete(name, [*words, "="] if at_equals() else words, incomplete)


def _group_list() -> str:
    rows = [f"[b]{name}[/b]={'|'.join(choices)}" for name, choices in config_groups().items()]
    return "Config groups: " + "  ".join(rows)


TrainOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings: [b]model=softmax[/b], [b]trainer.steps=100[/b], [b]experiment=demo[/b].",
        autocompletion=_complete_train,
    ),
]
BenchOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings: [b]suite=kernel[/b], [b]threads=1[/b], [b]shapes=\\[8x4x500x32][/b].",
        autocompletion=_complete_bench,
    ),
]
SampleOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings: [b]seed=1[/b], [b]checkpoint=best[/b], [b]vocoder=hifigan[/b].",
        autocompletion=_complete_sample,
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train autoregressive mel-spectrogram TTS on its own outputs, and sample from it."""
    _help_if_alone(ctx)


@data_app.callback()
def data(ctx: typer.Context) -> None:
    """Make or fetch a corpus."""
    _help_if_alone(ctx)


def _help_if_alone(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


@app.command(epilog=_group_list())
def train(
    overrides: TrainOverrides = None,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="Sweep over comma-separated values.")
    ] = False,
    cfg: Annotated[
        Show | None, typer.Option("--cfg", "-c", help="Print the settings and stop.")
    ] = None,
    config_dir: Annotated[
        Path | None, typer.Option(help="Extra folder with config groups.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run folder to continue.")
    ] = None,
) -> None:
    """Train a model; prints the run folder. Stopped by Ctrl-C or SIGTERM it saves first."""
    from profforce.bridge import Launch, launch

    if config_dir is not None and not config_dir.is_dir():
        raise UserError("no such folder", where=f"--config-dir {config_dir}")
    how = Launch(multirun, cfg.value if cfg else None, config_dir, resume)
    launch("train", _TrainTask(resume is not None), list(overrides or []), how)


class _TrainTask:
    """The task that Hydra runs; picklable, so that launchers can send it to other processes."""

    __name__ = __qualname__ = "train"

    def __init__(self, resume: bool) -> None:
        self.resume = resume

    def __call__(self, cfg: object, run_dir: Path) -> float:
        from profforce.config import TrainConfig
        from profforce.display import training_display
        from profforce.training.loop import train as run

        assert isinstance(cfg, TrainConfig)
        with training_display(cfg.trainer.steps) as report:
            score = run(cfg, run_dir, resume=self.resume, report=report)
        typer.echo(run_dir)
        return score


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
        _print_json({**asdict(report), "num_utterances": report.num_utterances})
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


def _print_json(row: object) -> None:
    """One line of JSON, as readable as the encoding of stdout allows."""
    readable = "utf" in (sys.stdout.encoding or "").lower()
    typer.echo(json.dumps(row, default=str, ensure_ascii=not readable))


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


@app.command()
def sample(
    run: Annotated[Path, typer.Option(help="Folder of a training run.")],
    out: Annotated[Path, typer.Option(help="Folder for wav, mel and picture.")],
    overrides: SampleOverrides = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be repeated.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE|-", help="A file with a text a line; - is stdin."),
    ] = None,
) -> None:
    """Speak texts with a trained run; prints one JSON line an utterance."""
    from profforce.bridge import compose
    from profforce.config import SampleConfig
    from profforce.display import log_to_stderr, work_display

    cfg = compose(SampleConfig, "sample", list(overrides or []))
    texts = texts_to_speak(text, source)
    log_to_stderr()
    with work_display() as progress:
        from profforce.sampling.run import sample as speak

        for number, row in enumerate(speak(cfg, run, texts, out), 1):
            _print_json(row)
            progress("speaking", number, len(texts))


@app.command()
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

        report = run_suite(config, progress)
    for kind, target in texts.items():
        if target == "-":
            typer.echo(WRITERS[kind](report), nl=False)
        elif target is not None:
            Path(target).write_text(WRITERS[kind](report), encoding="utf-8")
    if plot_to is not None:
        plot(report, plot_to)
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
    from profforce.bridge import compose
    from profforce.config import BenchConfig

    return compose(BenchConfig, "bench", words)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Compile every CUDA kernel ahead; needs no GPU.")
    ] = False,
    arch: Annotated[
        str | None,
        typer.Option(metavar="80,90", help="With --build: for these, not for the devices here."),
    ] = None,
) -> None:
    """Say what this machine offers; exit code 1 if something needed is broken."""
    if build:
        _build_kernels([] if arch is None else arch.split(","), as_json)
        return
    if arch is not None:
        raise UserError("--arch belongs to --build", remedy=f"use --build --arch {arch}")
    from profforce.doctor import examine

    findings = examine()
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        from profforce.display import show_findings

        show_findings(findings)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _build_kernels(architectures: Sequence[str], as_json: bool) -> None:
    from profforce.display import log_to_stderr, show_builds, work_display
    from profforce.doctor import build

    log_to_stderr()
    with work_display() as progress:
        builds = build(architectures, progress)
    if as_json:
        _print_json([asdict(row) for row in builds])
    else:
        show_builds(builds)
    if any(row.error is not None for row in builds):
        raise typer.Exit(1)
