"""The flags of ``profforce train`` and those that Hydra gets for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from profforce.bridge.folders import saved_folder


@dataclass(frozen=True)
class Launch:
    """How ``hydra.main`` is to run; the fields are the flags of ``profforce train``."""

    multirun: bool = False
    show: Literal["job", "hydra", "all"] | None = None
    config_dir: Path | None = None
    resume: Path | None = None


def hydra_flags(how: Launch) -> list[str]:
    """Hydra's own flags; they stand before the overrides because argparse wants them so."""
    flags = ["--multirun"] if how.multirun else []
    if how.show is not None:
        flags += ["--cfg", how.show]
    if how.resume is not None:
        flags += ["--config-dir", str(saved_folder(how.resume)), "--config-name", "config"]
    elif how.config_dir is not None:
        flags += ["--config-dir", str(how.config_dir.absolute())]
    return flags
