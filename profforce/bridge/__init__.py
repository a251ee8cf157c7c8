"""Between the command line and Hydra: overrides in, checked dataclasses out.

Only Hydra's documented surface is used: ``hydra.main``, ``compose``, ``sys.argv`` and the variable
``HYDRA_FULL_ERROR``, which makes ``hydra.main`` raise instead of printing and exiting. Whatever a
person can mend leaves this package as one ``UserError``.
"""

from profforce.bridge.flags import Launch
from profforce.bridge.launching import TeamTask, launch
from profforce.bridge.settings import (
    SCHEMAS,
    VERSION_BASE,
    compose,
    register_schemas,
    saved_settings,
)
from profforce.bridge.words import quoted

__all__ = [
    "SCHEMAS",
    "VERSION_BASE",
    "Launch",
    "TeamTask",
    "compose",
    "launch",
    "quoted",
    "register_schemas",
    "saved_settings",
]
