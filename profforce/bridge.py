"""Between the command line and Hydra: overrides in, checked dataclasses out.

Only Hydra's documented surface is used: ``hydra.main``, ``compose``, ``sys.argv`` and the variable
``HYDRA_FULL_ERROR``, which makes ``hydra.main`` raise instead of printing and exiting. Whatever a
person can mend leaves this file as one ``UserError``.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profforce.config import SampleConfig, TrainConfig
from profforce.errors import UserError, did_you_mean
from profforce.groups import CONF_PACKAGE, config_groups

Config = TypeVar("Config", TrainConfig, SampleConfig)
VERSION_BASE = "1.3"
SCHEMAS: dict[str, type] = {"train": TrainConfig, "sample": SampleConfig}


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
        store.store(name=f"{name}_schema", node=schema)


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


def launch(
    name: str, task: Callable[[TrainConfig, Path], Any], overrides: Sequence[str], how: Launch
) -> Any:
    """Run ``task(cfg, run_dir)`` as the Hydra application ``name``.

    Returns:
        The task's result; None for a sweep and for ``how.show``.

    Raises:
        UserError: as :func:`compose`; also a resumed folder that is no run, and a run folder that
            cannot be made.
    """
    words = _checked(overrides)
    _refuse_processes()
    if how.resume is not None:
        words = _resumed(words, how)
    if not how.multirun and how.show is None:  # a mistake must not leave or change a run folder
        _typed(_composed(name, words, how), TrainConfig)
    argv = [f"profforce {name}", *_flags(how), *words]
    return _run_hydra(name, task, argv, lambda err: explain(err, name, words, how))


def _run_hydra(
    name: str,
    task: Callable[[TrainConfig, Path], Any],
    argv: list[str],
    explained: Callable[[BaseException], str],
) -> Any:
    box: dict[str, Any] = {}

    def job(raw: DictConfig) -> Any:
        info = HydraConfig.get()
        try:
            box["result"] = task(_typed(raw, TrainConfig), Path(info.runtime.output_dir))
        except Exception as err:
            if info.mode == RunMode.MULTIRUN:
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
        except (HydraException, OmegaConfBaseException) as err:
            raise UserError(explained(err)) from err
        except OSError as err:
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
            return hydra.compose(name, [*words, *(extra or [])])
    except (HydraException, OmegaConfBaseException) as err:
        raise UserError(explain(err, name, words, how)) from err


def _typed(raw: DictConfig, schema: type[Config]) -> Config:
    """Turn a composed config into an instance of ``schema``, whose own checks run here."""
    if missing := sorted(OmegaConf.missing_keys(raw)):
        raise UserError(f"no value for {', '.join(missing)}", remedy=f"add {missing[0]}=VALUE")
    try:
        plain = OmegaConf.create(OmegaConf.to_container(raw, resolve=True))  # drops node types, so
        merged = OmegaConf.merge(OmegaConf.structured(schema), plain)  # that "+key=" is checked too
        made = OmegaConf.to_object(merged)
    except OmegaConfBaseException as err:
        raise UserError(_first_line(err) + _near_key(str(err.full_key or ""), schema)) from err
    except ValueError as err:
        raise UserError(str(err)) from err
    assert isinstance(made, schema)
    return made


def _checked(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra wants them; refuse what its argument parser would take for a flag."""
    for word in overrides:
        if word.startswith("-"):
            raise UserError("is no override", where=f"'{word}'", expected="KEY=VALUE")
    return [w.removeprefix("+") if w.startswith("+experiment=") else w for w in overrides]


def _resumed(words: list[str], how: Launch) -> list[str]:
    """Overrides that continue the run ``how.resume`` in its own folder, from its own settings."""
    run = how.resume
    assert run is not None
    if how.multirun or how.config_dir is not None:
        raise UserError(
            "--resume continues one run from its own settings",
            remedy="leave out --multirun and --config-dir",
        )
    if not (_saved(run) / "config.yaml").is_file():
        raise UserError(
            "is no run folder: it has no .hydra/config.yaml",
            where=run,
            remedy="give the folder that profforce train made, such as runs/DATE/TIME",
        )
    for word in words:
        if word.lstrip("+").startswith("hydra.run.dir="):
            raise UserError(f"--resume keeps the run folder {run}; leave out '{word}'")
    folder = f"hydra.run.dir={quoted(str(run))}"
    return [*words, folder, "hydra.job.name=train", "hydra/job_logging=profforce"]


def _is_hydra(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))


def _saved(run: Path) -> Path:
    return (run / ".hydra").absolute()


def _refuse_processes() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "training uses one process",
            got=f"WORLD_SIZE={os.environ['WORLD_SIZE']}",
            remedy="start profforce train without torchrun",
        )


def quoted(value: str) -> str:
    """``value`` as a quoted string of Hydra's override grammar."""
    return "'" + value.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def known_keys(schema: type) -> list[str]:
    """Dotted names of all settings of ``schema``."""

    def walk(node: Any, prefix: str) -> Iterator[str]:
        for key in node if isinstance(node, dict) else ():
            full = f"{prefix}{key}"
            yield full
            yield from walk(node[key], f"{full}.")

    return list(walk(OmegaConf.to_container(OmegaConf.structured(schema)), ""))


def _near_key(key: str, schema: type) -> str:
    known = known_keys(schema)
    same_leaf = [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2] and k != key]
    if key and key not in known and same_leaf:
        return f"; did you mean '{same_leaf[0]}'?"
    return did_you_mean(key, [*known, *config_groups()]) if key and key not in known else ""


def _first_line(err: BaseException) -> str:
    text = str(err).splitlines()[0] if str(err) else type(err).__name__
    full = getattr(err, "full_key", None)
    return f"{text} (at '{full}')" if full else text


def explain(err: BaseException, name: str, words: Sequence[str], how: Launch) -> str:
    """One line for an error of Hydra or OmegaConf."""
    first = str(err).splitlines()[0] if str(err) else type(err).__name__
    if isinstance(err, MissingConfigException) and err.options:
        group, _, choice = (err.missing_cfg_file or "").rpartition("/")
        options = [o for o in err.options if not o.endswith("_schema")]
        near = did_you_mean(choice, options)
        return f"config group '{group}' has no '{choice}'{near} (choices: {', '.join(options)})"
    if isinstance(err, OverrideParseException):
        return f"cannot parse override '{err.override}', expected KEY=VALUE: {first}"
    if first.startswith(("Ambiguous value", "Sweep parameters")):
        return f"{first}: use profforce train -m to sweep, [a,b] for a list, or quote it"
    if first.startswith(("Could not override", "Could not find")):
        for key in (w.lstrip("+~").split("=", 1)[0].split("@", 1)[0] for w in words):
            if f"'{key}'" in first:
                if how.resume is not None and key in config_groups():
                    return f"a resumed run keeps its '{key}'; override single values of it instead"
                return f"no config key or group '{key}'{_near_key(key, SCHEMAS[name])}"
    cause = err.__cause__
    return _first_line(cause if isinstance(cause, OmegaConfBaseException) else err)
