"""The start of a run: alone, as a sweep, or as one of several processes."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from profforce import jobs
from profforce.bridge.application import run_hydra
from profforce.bridge.flags import Launch, hydra_flags
from profforce.bridge.folders import known_folder, run_folder, settings_kept, taken
from profforce.bridge.settings import SCHEMAS, composed, typed
from profforce.bridge.words import checked, quoted, resumed
from profforce.config import TrainConfig
from profforce.errors import UserError
from profforce.explain import explain, key_of
from profforce.runs import holds_run, refuse_busy, refuse_used

if TYPE_CHECKING:
    from profforce.training.distributed import Team

TeamTask = Callable[[TrainConfig, Path, "Team", bool], Any]
"""Does a process's part of ``(settings, run folder, team, whether it is resumed)``."""


def launch(
    name: str,
    task: Callable[[TrainConfig, Path], Any],
    overrides: Sequence[str],
    how: Launch,
    together: TeamTask | None = None,
) -> Any:
    """Run ``task(cfg, run_dir)`` as the Hydra application ``name``.

    Args:
        name: ``train``.
        task: what to do.
        overrides: words ``KEY=VALUE`` in Hydra's grammar.
        how: flags.
        together: what each of the processes does that torchrun has started, in place of ``task``.

    Returns:
        The task's result; None for a sweep and for ``how.show``.

    Raises:
        UserError: as :func:`compose`; also a resumed folder that is no run, a folder that holds
            another run already, and one that cannot be made.
    """
    if together is not None and jobs.started_by_torchrun():
        if how.show is None:
            return _launch_together(name, together, checked(overrides), how)
        if jobs.rank():  # one process shows the settings
            return None
    return _launch_alone(name, task, checked(overrides), how)


def _launch_alone(
    name: str, task: Callable[[TrainConfig, Path], Any], given: list[str], how: Launch
) -> Any:
    words = given if how.resume is None else resumed(given, how.resume, how)
    folder = None
    if not how.multirun and how.show is None:  # a mistake must neither leave nor change a folder
        raw = composed(name, words, how)
        folder = how.resume or known_folder(raw)
        typed(raw, TrainConfig)
        if folder is not None:
            words = _in_folder(words, folder)  # its name may tell the time: Hydra's is later
    argv = [f"profforce {name}", *hydra_flags(how), *words]
    try:
        with taken(folder, resume=how.resume is not None), settings_kept(how.resume):
            return run_hydra(name, task, argv)
    except (HydraException, OmegaConfBaseException) as err:
        raise UserError(explain(err, SCHEMAS[name], given)) from err


def _launch_together(name: str, task: TeamTask, given: list[str], how: Launch) -> Any:
    """As one of several processes, of which only the first runs Hydra, in a folder for all."""
    from profforce.training.distributed import joined

    if how.multirun:
        raise UserError(
            "a sweep starts its jobs itself",
            where="--multirun",
            remedy="leave out torchrun; hydra/launcher=submitit_slurm gives each job its machine",
        )
    cfg, folder = _prepared(name, given, how)
    with joined(cfg.device, cfg.trainer.timeout_minutes) as team:
        folder, begun = team.from_first("choosing the run folder", lambda: _chosen(folder, how))
        if begun and how.resume is None:  # its settings hold what was given, groups included
            how, given = replace(how, resume=folder), []
        elif how.resume is None:
            given = _in_folder(given, folder)
        cfg = team.from_first("composing the settings", lambda: _prepared(name, given, how)[0])
        resumes = how.resume is not None
        if not team.is_first:
            where = f"%(asctime)s %(levelname).1s process {team.rank}: %(message)s"
            logging.basicConfig(level=logging.ERROR, format=where, stream=sys.stderr)
            return task(cfg, folder, team, resumes)
        result = _launch_alone(name, lambda cfg, _: task(cfg, folder, team, resumes), given, how)
        jobs.end()
        return result


def _in_folder(words: list[str], folder: Path) -> list[str]:
    kept = [w for w in words if key_of(w) != "hydra.run.dir"]
    return [*kept, f"hydra.run.dir={quoted(str(folder))}"]


def _prepared(name: str, given: list[str], how: Launch) -> tuple[TrainConfig, Path]:
    """The settings of a run and its folder."""
    words = given if how.resume is None else resumed(given, how.resume, how)
    raw = composed(name, words, how)
    folder = how.resume or run_folder(raw)
    return typed(raw, TrainConfig), folder.absolute()


def _chosen(folder: Path, how: Launch) -> tuple[Path, bool]:
    """Where all train, and whether a checkpoint of this job is there to go on from."""
    found = jobs.begun(folder)
    if found is not None:
        return found, holds_run(found)
    if how.resume is None:
        refuse_used(folder)
    else:
        refuse_busy(folder)
    jobs.begin(folder)
    return folder, False
