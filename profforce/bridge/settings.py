"""Overrides or a saved file in, checked dataclasses out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from profforce.bridge.flags import Launch
from profforce.bridge.folders import saved_folder
from profforce.bridge.words import checked, is_hydra, quoted
from profforce.config import BenchConfig, EvaluateConfig, SampleConfig, TrainConfig
from profforce.errors import UserError
from profforce.explain import explain, located, near_key
from profforce.groups import CONF_PACKAGE

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
    words = checked(overrides)
    for word in words:
        if is_hydra(word):
            raise UserError(
                "this command has no run folder and no sweep",
                where=f"override '{word}'",
                remedy="leave it out; hydra.* belongs to profforce train",
            )
    return typed(composed(name, words, Launch(config_dir=config_dir)), schema)


def saved_settings(run: Path) -> TrainConfig:
    """The settings that ``profforce train`` kept with ``run``.

    Raises:
        UserError: where there are none, or this version cannot use them.
    """
    file = saved_folder(run) / "config.yaml"
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
        return typed(raw, TrainConfig)
    except UserError as err:
        raise UserError(str(err), where=file) from err


def composed(name: str, words: list[str], how: Launch) -> DictConfig:
    """All settings of config ``name`` with ``words``; of a resumed run, on top of its own.

    Raises:
        UserError: as :func:`compose`; values are not checked yet.
    """
    register_schemas()
    extra = how.config_dir and [
        f"hydra.searchpath=[{quoted(f'file://{how.config_dir.absolute()}')}]"
    ]
    try:
        if how.resume is not None:
            with hydra.initialize_config_dir(
                str(saved_folder(how.resume)), version_base=VERSION_BASE
            ):
                return hydra.compose("config", [w for w in words if not is_hydra(w)])
        with hydra.initialize_config_module(CONF_PACKAGE, version_base=VERSION_BASE):
            return hydra.compose(name, [*words, *(extra or [])], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as err:
        raise UserError(explain(err, SCHEMAS[name], words)) from err


def typed(raw: DictConfig, schema: type[Config]) -> Config:
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
