"""``profforce launch``: a command in several processes, as torchrun starts them.

What torchrun would do on one machine, with the exit codes of the command itself and without the
traceback that torchrun adds to every end that is not its own.
"""

import logging
import os
import signal
import sys
from dataclasses import fields
from typing import Annotated, Any
from uuid import uuid4

import typer

from profforce.commands.shared import say
from profforce.errors import UserError, did_you_mean
from profforce.jobs import started_by_torchrun

COMMANDS = ("train", "sample", "evaluate")
"""Those that divide their work."""
SHUTDOWN_S = 600
"""Time that a run has to save itself after a signal, where PyTorch lets one choose; 30 s if not."""


def launch(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="As without launch.")],
    processes: Annotated[
        int | None, typer.Option("--processes", "-n", min=1, help="One a GPU when unset.")
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="Times to go on from the last checkpoint after a failure.")
    ] = 0,
) -> None:
    """Run train, sample or evaluate in several processes of this machine."""
    if words[0] not in COMMANDS:
        raise UserError(
            "cannot be divided among processes",
            where=f"'{words[0]}'",
            expected=", ".join(COMMANDS) + did_you_mean(words[0], COMMANDS),
        )
    if started_by_torchrun():
        raise UserError("torchrun has started several processes already", remedy="leave out launch")
    raise typer.Exit(run_together(words, processes or _num_gpus(), restarts))


def _num_gpus() -> int:
    import torch

    if count := torch.cuda.device_count():
        return count
    raise UserError("no GPU to count", where="--processes", remedy="give a number")


def run_together(words: list[str], processes: int, restarts: int) -> int:
    """Run ``profforce WORDS`` in ``processes`` at once and return the exit code of them all.

    It is that of the first one to fail, or 128 and the number of the signal that ended them.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # what they tell of each end, and of a signal, is told below and by the processes, in one line
    for name in ("multiprocessing.api", "agent.server.api"):
        logging.getLogger(f"torch.distributed.elastic.{name}").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    settings: dict[str, Any] = {"shutdown_timeout": SHUTDOWN_S}  # newer than PyTorch 2.9
    known = {f.name for f in fields(LaunchConfig)}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        **{name: value for name, value in settings.items() if name in known},
    )
    try:
        elastic_launch(config, sys.executable)("-m", "profforce", *words)
    except SignalException as err:
        return 128 + int(err.sigval)
    except ChildFailedError as err:
        rank, failure = err.get_first_failure()
        code = int(failure.exitcode)
        if code < 0:
            say(f"process {rank} was ended by {signal.Signals(-code).name}", "red")
            return 1
        say(f"process {rank} ended with exit code {code}; its message is above", "red")
        return code
    return 0
