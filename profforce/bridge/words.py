"""Overrides as people write them and as Hydra wants them."""

import re
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf
from yaml import YAMLError

from profforce.bridge.flags import Launch
from profforce.bridge.folders import saved_folder
from profforce.config import TrainConfig
from profforce.errors import UserError
from profforce.explain import key_of, keys_in
from profforce.groups import config_groups

NOTHING = ("null", "")
"""What people write after ``GROUP=`` for none."""


def checked(overrides: Sequence[str]) -> list[str]:
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


def resumed(words: list[str], run: Path, how: Launch) -> list[str]:
    """Overrides that continue ``run`` in its own folder, from its own settings."""
    if how.multirun or how.config_dir is not None:
        raise UserError(
            "--resume continues one run from its own settings",
            remedy="leave out --multirun and --config-dir",
        )
    if not (saved_folder(run) / "config.yaml").is_file():
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
    words = _with_newer(words, run)
    return [*words, folder, "hydra.job.name=train", "hydra/job_logging=profforce"]


def _with_newer(words: list[str], run: Path) -> list[str]:
    """``words``, those that give a setting from after ``run`` began as Hydra wants a new key."""
    try:
        saved = OmegaConf.load(saved_folder(run) / "config.yaml")
    except (OSError, ValueError, YAMLError):  # said where the settings are composed
        return words
    now = OmegaConf.structured(TrainConfig)
    known, kept = (set(keys_in(OmegaConf.to_container(each))) for each in (now, saved))
    newer = known - kept
    return [f"+{word}" if word[0] not in "+~" and key_of(word) in newer else word for word in words]


def is_hydra(word: str) -> bool:
    """Whether an override is of Hydra's own settings."""
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))


def quoted(value: str) -> str:
    """``value`` as a quoted string of Hydra's override grammar.

    Backslashes count there only before a quote, the closing one included.
    """
    inner = re.sub(r"(\\*)'", r"\1\1\'", value)
    trailing = inner[len(inner.rstrip("\\")) :]
    return f"'{inner}{trailing}'"
