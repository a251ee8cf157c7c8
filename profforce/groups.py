"""Names of the packaged config groups and their choices, read without Hydra."""

from importlib.resources import files
from importlib.resources.abc import Traversable

CONF_PACKAGE = "profforce.conf"


def config_groups() -> dict[str, list[str]]:
    """``{"model": ["linear", ...], ...}``, both sorted."""
    folders = sorted((d for d in files(CONF_PACKAGE).iterdir() if d.is_dir()), key=_name)
    choices = {folder.name: _yaml_stems(folder) for folder in folders}
    return {group: names for group, names in choices.items() if names}


def _yaml_stems(folder: Traversable) -> list[str]:
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".yaml"))
    return [name.removesuffix(".yaml") for name in names]


def _name(item: Traversable) -> str:
    return item.name
