"""``profforce train``."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profforce.commands.shared import TrainOverrides
from profforce.errors import UserError

if TYPE_CHECKING:
    from profforce.config import TrainConfig
    from profforce.training.distributed import Team


class Show(StrEnum):
    """Which part of the composed settings to print."""

    job = "job"
    hydra = "hydra"
    all = "all"


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
    words = list(overrides or [])
    launch("train", _TrainTask(resume is not None), words, how, together=_as_member)


def _as_member(cfg: "TrainConfig", run_dir: Path, team: "Team", resume: bool) -> float:
    """What each of several processes does; the first one speaks for all."""
    from profforce.display import training_display
    from profforce.evaluation.score import scorer_of
    from profforce.training.run import train as run

    if not team.is_first:
        return run(cfg, run_dir, resume=resume, team=team, make_scorer=scorer_of)
    with training_display(cfg.trainer.steps) as report:
        score = run(cfg, run_dir, resume=resume, report=report, team=team, make_scorer=scorer_of)
    typer.echo(run_dir)
    return score


class _TrainTask:
    """The task that Hydra runs; picklable, so that launchers can send it to other processes."""

    __name__ = __qualname__ = "train"

    def __init__(self, resume: bool) -> None:
        self.resume = resume

    def __call__(self, cfg: object, run_dir: Path) -> float:
        from profforce.config import TrainConfig
        from profforce.display import training_display
        from profforce.evaluation.score import scorer_of
        from profforce.training.run import train as run

        assert isinstance(cfg, TrainConfig)
        with training_display(cfg.trainer.steps) as report:
            score = run(cfg, run_dir, resume=self.resume, report=report, make_scorer=scorer_of)
        typer.echo(run_dir)
        return score
