"""Optional packages of the judges: the module or the weights of one, or what to install."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from profforce.errors import UserError

JUDGES = "run: pip install 'profforce[judges]'"
"""The remedy for most of them."""


def package_of(name: str, remedy: str = JUDGES) -> ModuleType:
    """The module ``name``; raises :class:`UserError` with ``remedy`` where a package is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as err:
        raise UserError(f"'{err.name}' is not installed", remedy=remedy) from err


def file_of(package: str, file: str, what: str, remedy: str = JUDGES) -> Path:
    """The path of ``file`` within an installed ``package``, which is not imported.

    Raises :class:`UserError` saying that ``what`` is not installed if it is not there.
    """
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    raise UserError(f"{what} are not installed", remedy=remedy)
