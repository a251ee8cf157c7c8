"""Command line of profforce: Typer outside, Hydra inside. Heavy imports wait for their command."""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from profforce import __version__
from profforce.commands.bench import bench
from profforce.commands.data import data_app
from profforce.commands.doctor import doctor
from profforce.commands.evaluate import evaluate
from profforce.commands.export import export
from profforce.commands.launch import launch
from profforce.commands.sample import sample
from profforce.commands.shared import group_list, help_if_alone, say, who
from profforce.commands.train import train
from profforce.commands.unwinding import signals_unwind
from profforce.disk import UNWRITABLE
from profforce.errors import UserError
from profforce.jobs import LostError, let_the_cause_end

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Base of Typer's usage errors, in whichever click Typer brings along."""

app = typer.Typer(
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=group_list())(train)
app.add_typer(data_app, name="data")
for command in (sample, evaluate, export, bench, doctor):
    app.command()(command)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(
    launch
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0 done; 1 a fault, with its traceback, or a task that failed, in one line; 2 what a person can
    mend, in one line; 130 and 143 after SIGINT and SIGTERM. A signal during training leaves as
    ``SystemExit`` once the run is saved.
    """
    _open_streams()
    command = typer.main.get_command(app)
    try:
        with signals_unwind():
            code = command.main(
                args=None if argv is None else list(argv),
                prog_name="profforce",
                standalone_mode=False,
            )
    except UserError as err:
        _refuse("; ".join([str(err), *getattr(err, "__notes__", [])]))
        if isinstance(err, LostError):
            let_the_cause_end()
        return err.exit_code
    except UsageError as err:
        return _refuse(_usage_line(cast(typer.BadParameter, err)))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader of a pipe went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as err:
        if err.filename is None and err.errno in UNWRITABLE:  # standard output, as into a file
            return _refuse(f"the output cannot be written; got {err.strerror}; make room for it")
        traceback.print_exc()
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Where the caller has closed a standard stream, nothing comes in and nobody listens.

    Otherwise the next file to be opened takes its number, and gets what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _refuse(message: str) -> int:
    say(f"{who()}error: {message}", "red")
    return UserError.exit_code


def _usage_line(err: typer.BadParameter) -> str:
    """Typer's complaint in one line, with the way to the help."""
    text = " ".join(err.format_message().split()).rstrip(".")
    command = err.ctx.command_path if err.ctx else "profforce"
    return f"{text[:1].lower()}{text[1:]}; see '{command} --help'"


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
    help_if_alone(ctx)
