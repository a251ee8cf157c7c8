"""A task run as a Hydra application, which gets its words from ``sys.argv``."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig

from profforce.bridge.settings import VERSION_BASE, register_schemas, typed
from profforce.config import TrainConfig
from profforce.errors import UserError
from profforce.groups import CONF_PACKAGE


def run_hydra(name: str, task: Callable[[TrainConfig, Path], Any], argv: list[str]) -> Any:
    """The result of ``task`` under ``hydra.main``; None where it does not run.

    Args:
        name: of the config.
        task: gets the settings and the run folder, which Hydra has made.
        argv: as ``sys.argv``: the program, Hydra's flags, overrides.

    Raises:
        UserError: where the folder cannot be made.
        Exception: errors of Hydra and of OmegaConf, and whatever the task raises.
    """
    box: dict[str, Any] = {}

    def job(raw: DictConfig) -> Any:
        info = HydraConfig.get()
        try:
            box["result"] = task(typed(raw, TrainConfig), Path(info.runtime.output_dir))
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
