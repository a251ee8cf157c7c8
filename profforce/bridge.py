"""Between the command line and Hydra: overrides in, checked dataclasses out.

Only Hydra's documented surface is used: ``hydra.main``, ``compose``, ``sys.argv`` and the variable
``HYDRA_FULL_ERROR``, which makes ``hydra.main`` raise instead of printing and exiting. Whatever a
person can mend leaves this file as one ``UserError``.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from profforce import jobs
from profforce.config import BenchConfig, EvaluateConfig, SampleConfig, TrainConfig
from profforce.errors import UserError
from profforce.explain import explain, key_of, located, near_key
from profforce.groups import CONF_PACKAGE, config_groups
from profforce.runs import holds_run, refuse_used

if TYPE_CHECKING:
    from profforce.training.distributed import Team

TeamTask = Callable[[TrainConfig, Path, "Team", bool], Any]
"""Does a process's part of ``(settings, run folder, team, whether it is resumed)``."""
Config = TypeVar("Config", TrainConfig, SampleConfig, EvaluateConfig, BenchConfig)
VERSION_BASE = "1.3"
SCHEMAS: dict[str, type] = {
    "train": TrainConfig,
    "sample": SampleConfig,
    "evaluate": EvaluateConfig,
    "bench": BenchConfig,
}
WITHOUT_FILE = ("evaluate",)
"""Settings that are their dataclass alone, with no YAML file."""
MEANINGS = {"data.root": "the folder with metadata.csv or manifest.jsonl"}
"""Of settings that have no default."""
NOTHING = ("null", "")
"""What people write after ``GROUP=`` for none."""


@dataclass(frozen=True)
class Launch:
    """How ``hydra.main`` is to run; the fields are the flags of ``profforce train``."""

    multirun: bool = False
    show: Literal["job", "hydra", "all"] | None = None
    config_dir: Path | None = None
    resume: Path | None = None


def register_schemas() -> None:
    """Tell Hydra the dataclasses that ``conf/train.yaml`` and ``conf/sample.yaml`` build on."""
    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(name=name if name in WITHOUT_FILE else f"{name}_schema", node=schema)


def compose(
    schema: type[Config],
    name: str,
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
) -> Config:
    """Compose config ``name`` with ``overrides`` and check it; no run folder, no logging.

    Args:
        schema: the dataclass to return.
        name: ``train`` or ``sample``.
        overrides: words ``KEY=VALUE`` in Hydra's grammar.
        config_dir: an extra folder with config groups.

    Raises:
        UserError: an unknown key or choice, a value that cannot be, a value that is missing.
    """
    words = _checked(overrides)
    for word in words:
        if _is_hydra(word):
            raise UserError(
                "this command has no run folder and no sweep",
                where=f"override '{word}'",
                remedy="leave it out; hydra.* belongs to profforce train",
            )
    return _typed(_composed(name, words, Launch(config_dir=config_dir)), schema)


def saved_settings(run: Path) -> TrainConfig:
    """The settings that ``profforce train`` kept with ``run``.

    Raises:
        UserError: where there are none, or this version cannot use them.
    """
    file = _saved(run) / "config.yaml"
    if not file.is_file():
        raise UserError(
            "no settings of a training here",
            where=run,
            expected=".hydra/config.yaml",
            remedy="give the folder that profforce train made, such as runs/DATE/TIME",
        )
    try:
        raw = OmegaConf.load(file)
    except (OSError, ValueError, YAMLError) as err:
        raise UserError("cannot be read", where=file, got=str(err)) from err
    if not isinstance(raw, DictConfig):
        raise UserError("holds no settings", where=file, expected="KEY: VALUE lines")
    try:
        return _typed(raw, TrainConfig)
    except UserError as err:
        raise UserError(str(err), where=file) from err


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
            return _launch_together(name, together, _checked(overrides), how)
        if jobs.rank():  # one process shows the settings
            return None
    return _launch_alone(name, task, _checked(overrides), how)


def _launch_alone(
    name: str, task: Callable[[TrainConfig, Path], Any], given: list[str], how: Launch
) -> Any:
    words = given if how.resume is None else _resumed(given, how.resume, how)
    if not how.multirun and how.show is None:  # a mistake must neither leave nor change a folder
        raw = _composed(name, words, how)
        if how.resume is None:
            _refuse_used(raw)
        _typed(raw, TrainConfig)
    argv = [f"profforce {name}", *_flags(how), *words]
    try:
        with _settings_kept(how.resume):
            return _run_hydra(name, task, argv)
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
            given = [w for w in given if key_of(w) != "hydra.run.dir"]
            given.append(f"hydra.run.dir={quoted(str(folder))}")
        cfg = team.from_first("composing the settings", lambda: _prepared(name, given, how)[0])
        resumes = how.resume is not None
        if not team.is_first:
            where = f"%(asctime)s %(levelname).1s process {team.rank}: %(message)s"
            logging.basicConfig(level=logging.ERROR, format=where, stream=sys.stderr)
            return task(cfg, folder, team, resumes)
        result = _launch_alone(name, lambda cfg, _: task(cfg, folder, team, resumes), given, how)
        jobs.end()
        return result


def _prepared(name: str, given: list[str], how: Launch) -> tuple[TrainConfig, Path]:
    """The settings of a run and its folder."""
    words = given if how.resume is None else _resumed(given, how.resume, how)
    raw = _composed(name, words, how)
    folder = how.resume or _run_folder(raw)
    return _typed(raw, TrainConfig), folder.absolute()


def _chosen(folder: Path, how: Launch) -> tuple[Path, bool]:
    """Where all train, and whether a checkpoint of this job is there to go on from."""
    found = jobs.begun(folder)
    if found is not None:
        return found, holds_run(found)
    if how.resume is None:
        refuse_used(folder)
    jobs.begin(folder)
    return folder, False


@contextmanager
def _settings_kept(run: Path | None) -> Iterator[None]:
    """Put back a resumed run's settings, which Hydra rewrites, when the run refuses new ones."""
    saved = [] if run is None else sorted(_saved(run).glob("*.yaml"))
    before = [(path, path.read_bytes()) for path in saved]
    try:
        yield
    except UserError:
        for path, content in before:
            aside = path.with_name(f".{path.name}.partial")
            aside.write_bytes(content)
            aside.replace(path)
        raise


def _refuse_used(raw: DictConfig) -> None:
    """Refuse a run folder with checkpoints before Hydra writes other settings into it."""
    try:
        folder = _run_folder(raw)
    except OmegaConfBaseException:  # it depends on the job: the loop looks again
        return
    refuse_used(folder)


def _run_folder(raw: DictConfig) -> Path:
    """Where the run is to be made.

    Raises:
        UserError: if that is no name.
    """
    folder = str(OmegaConf.select(raw, "hydra.run.dir"))
    if not folder.strip():
        raise UserError(
            "a run needs a folder",
            where="hydra.run.dir",
            got=f"'{folder}'",
            remedy="give its name, or leave it out for runs/DATE/TIME",
        )
    return Path(folder)


def _run_hydra(name: str, task: Callable[[TrainConfig, Path], Any], argv: list[str]) -> Any:
    box: dict[str, Any] = {}

    def job(raw: DictConfig) -> Any:
        info = HydraConfig.get()
        try:
            box["result"] = task(_typed(raw, TrainConfig), Path(info.runtime.output_dir))
        except Exception as err:
            if info.mode == RunMode.MULTIRUN:
                err.add_note(f"in job {info.job.num} of the sweep: {info.job.override_dirname}")
                raise  # the launcher has to know
            box["error"] = err  # else leave Hydra first: its frames would hide the task's own
        return box.get("result")

    register_schemas()
    main = hydra.main(
        version_base=VERSION_BASE, config_path=f"pkg://{CONF_PACKAGE}", config_name=name
    )(job)
    with _arguments(argv):
        try:
            main()
        except (MissingConfigException, BrokenPipeError):  # OSErrors too, but no folder's
            raise
        except OSError as err:
            if hasattr(err, "__notes__"):  # the task's own, out of a sweep
                raise
            raise UserError(f"cannot make the run folder: {err}") from err
    if "error" in box:
        raise box["error"]
    return box.get("result")


@contextmanager
def _arguments(argv: list[str]) -> Iterator[None]:
    """Give ``argv`` to Hydra and make it raise its errors."""
    old_argv, old_full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = old_argv
        del os.environ["HYDRA_FULL_ERROR"]
        if old_full is not None:
            os.environ["HYDRA_FULL_ERROR"] = old_full


def _flags(how: Launch) -> list[str]:
    """Hydra's own flags; they stand before the overrides because argparse wants them so."""
    flags = ["--multirun"] if how.multirun else []
    if how.show is not None:
        flags += ["--cfg", how.show]
    if how.resume is not None:
        flags += ["--config-dir", str(_saved(how.resume)), "--config-name", "config"]
    elif how.config_dir is not None:
        flags += ["--config-dir", str(how.config_dir.absolute())]
    return flags


def _composed(name: str, words: list[str], how: Launch) -> DictConfig:
    register_schemas()
    extra = how.config_dir and [
        f"hydra.searchpath=[{quoted(f'file://{how.config_dir.absolute()}')}]"
    ]
    try:
        if how.resume is not None:
            with hydra.initialize_config_dir(str(_saved(how.resume)), version_base=VERSION_BASE):
                return hydra.compose("config", [w for w in words if not _is_hydra(w)])
        with hydra.initialize_config_module(CONF_PACKAGE, version_base=VERSION_BASE):
            return hydra.compose(name, [*words, *(extra or [])], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as err:
        raise UserError(explain(err, SCHEMAS[name], words)) from err


def _typed(raw: DictConfig, schema: type[Config]) -> Config:
    """Turn a composed config into an instance of ``schema``, whose own checks run here."""
    with open_dict(raw):
        raw.pop("hydra", None)
        shards = OmegaConf.select(raw, "data.shards")
        if shards and OmegaConf.is_missing(raw.data, "root"):  # tar files need no other folder
            raw.data.root = shards
    try:
        missing = sorted(OmegaConf.missing_keys(raw))
    except OmegaConfBaseException as err:
        raise UserError(located(err)) from err
    if missing:
        meaning = MEANINGS.get(missing[0], "")
        raise UserError(
            f"no value for {', '.join(missing)}",
            expected=meaning or None,
            remedy=f"add {missing[0]}=VALUE",
        )
    try:
        plain = OmegaConf.create(OmegaConf.to_container(raw, resolve=True))  # drops node types, so
        merged = OmegaConf.merge(OmegaConf.structured(schema), plain)  # that "+key=" is checked too
        made = OmegaConf.to_object(merged)
    except OmegaConfBaseException as err:
        raise UserError(located(err) + near_key(str(err.full_key or ""), schema)) from err
    except ValueError as err:
        raise UserError(str(err)) from err
    assert isinstance(made, schema)
    return made


def _checked(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra wants them; refuse what its argument parser would take for a flag."""
    for word in overrides:
        if word.startswith("-"):
            raise UserError("is no override", where=f"'{word}'", expected="KEY=VALUE")
    words = [w.removeprefix("+") if w.startswith("+experiment=") else w for w in overrides]
    for word in words:
        group, is_set, value = word.partition("=")
        if is_set and group in config_groups() and group != "experiment" and value in NOTHING:
            raise UserError(
                f"a {group} has to be chosen",
                where=f"'{word}'",
                expected=" or ".join(config_groups()[group]),
            )
    # no experiment is what there is without the word, and Hydra does not take null for a group
    return [w for w in words if w.partition("=")[::2] not in {("experiment", x) for x in NOTHING}]


def _resumed(words: list[str], run: Path, how: Launch) -> list[str]:
    """Overrides that continue ``run`` in its own folder, from its own settings."""
    if how.multirun or how.config_dir is not None:
        raise UserError(
            "--resume continues one run from its own settings",
            remedy="leave out --multirun and --config-dir",
        )
    if not (_saved(run) / "config.yaml").is_file():
        raise UserError(
            "no run to resume here: .hydra/config.yaml is missing",
            where=run,
            remedy="give the folder that profforce train made, such as runs/DATE/TIME",
        )
    for word in words:
        if key_of(word) == "hydra.run.dir":
            raise UserError(f"--resume keeps the run folder {run}; leave out '{word}'")
        if key_of(word) in config_groups():
            raise UserError(
                f"a resumed run keeps its {key_of(word)}; leave out '{word}'",
                remedy="single values may change",
            )
    folder = f"hydra.run.dir={quoted(str(run))}"
    return [*words, folder, "hydra.job.name=train", "hydra/job_logging=profforce"]


def _is_hydra(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))


def _saved(run: Path) -> Path:
    return (run / ".hydra").absolute()


def quoted(value: str) -> str:
    """``value`` as a quoted string of Hydra's override grammar.

    Backslashes count there only before a quote, the closing one included.
    """
    inner = re.sub(r"(\\*)'", r"\1\1\'", value)
    trailing = inner[len(inner.rstrip("\\")) :]
    return f"'{inner}{trailing}'"
