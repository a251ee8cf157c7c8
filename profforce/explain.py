"""Errors of Hydra and OmegaConf in one line each, with the nearest name that would have worked."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from profforce.errors import did_you_mean
from profforce.groups import config_groups

KINDS = {"Integer": "whole number", "Float": "number"}
LAUNCHER_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}


def explain(err: BaseException, schema: type, overrides: Sequence[str]) -> str:
    """What went wrong while composing.

    Args:
        err: an error of Hydra or OmegaConf.
        schema: the dataclass that the config was to fill.
        overrides: the words that the user gave.
    """
    first = _first_line(err)
    if isinstance(err, MissingConfigException) and err.options:
        return _missing_choice(err.missing_cfg_file or "", err.options)
    if isinstance(err, OverrideParseException):
        reason = "" if first.startswith("Error parsing override") else f": {first}"
        reason = _quoted(err.override) or reason
        return f"cannot parse override '{err.override}', expected KEY=VALUE{reason}"
    if first.startswith(("Ambiguous value", "Sweep parameters")):
        return f"{first}: use profforce train -m to sweep, [a,b] for a list, or quote it"
    if first.startswith("Could not append"):
        return f"{first} Leave out the '+'"
    if first.startswith(("Could not override", "Could not find")):
        for key in map(key_of, overrides):
            if f"'{key}'" in first:
                return f"no config key or group '{key}'{near_key(key, schema)}"
    cause = err.__cause__
    return located(cause if isinstance(cause, OmegaConfBaseException) else err)


def _quoted(override: str) -> str:
    """How a path with spaces, accents or brackets is written for a shell; else an empty string."""
    key, _, value = override.partition("=")
    if (
        not re.fullmatch(r"[\w.@/]+", key)
        or not value
        or value[0] in "[{"
        or set(value) & {*"'\"\\"}
    ):
        return ""
    return f"; quote the value twice: '{key}=\"{value}\"'"


def key_of(override: str) -> str:
    """``trainer.lr`` of ``+trainer.lr=1``; the group alone of ``group@package=choice``."""
    return override.lstrip("+~").split("=", 1)[0].split("@", 1)[0]


def _missing_choice(path: str, options: Sequence[str]) -> str:
    group, _, choice = path.rpartition("/")
    known = [option for option in options if not option.endswith("_schema")]
    near = did_you_mean(choice, known)
    if group == "hydra/launcher" and choice in LAUNCHER_EXTRAS:
        near = f"; pip install 'profforce[{LAUNCHER_EXTRAS[choice]}]'"
    return f"config group '{group}' has no '{choice}'{near} (choices: {', '.join(known)})"


def located(err: BaseException) -> str:
    """First line of ``err`` and the key that it is about."""
    key = getattr(err, "full_key", None)
    if key and isinstance(err, ValidationError):
        wanted = re.search(r"Value '(.*?)'.* could not be converted to (Integer|Float)", str(err))
        if wanted:
            return f"{key}: got '{wanted[1]}', expected a {KINDS[wanted[2]]}"
        if "is not a ListConfig" in str(err):
            return f"{key}: got a single value, expected a list; write '{key}=[VALUE]'"
    return f"{_first_line(err)} (at '{key}')" if key else _first_line(err)


def near_key(key: str, schema: type) -> str:
    """``"; did you mean 'trainer.lr'?"`` for a ``key`` that ``schema`` lacks, or an empty string.

    A name that is right but for its section comes first, then the nearest of the same section;
    where there is no such section, the nearest of the same depth.
    """
    known = list(keys_in(OmegaConf.to_container(OmegaConf.structured(schema))))
    if not key or key in known:
        return ""
    section, _, leaf = key.rpartition(".")
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"; did you mean '{same_leaf[0]}'?"
    if section in known:
        siblings = {name.rpartition(".")[2] for name in known if name.startswith(f"{section}.")}
        nearest = difflib.get_close_matches(leaf, siblings, n=1)
        return f"; did you mean '{section}.{nearest[0]}'?" if nearest else ""
    same_depth = [name for name in [*known, *config_groups()] if name.count(".") == key.count(".")]
    return did_you_mean(key, same_depth)


def keys_in(node: Any, prefix: str = "") -> Iterator[str]:
    """``trainer``, ``trainer.lr``, ...: every key of a nested dict."""
    for key in node if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from keys_in(node[key], f"{prefix}{key}.")


def _first_line(err: BaseException) -> str:
    return str(err).splitlines()[0] if str(err) else type(err).__name__
