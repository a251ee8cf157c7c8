"""What every test may rely on."""

import logging
from collections.abc import Iterator

import pytest

try:
    from hypothesis import settings
except ModuleNotFoundError:  # a machine that runs tests/gpu alone, which hold no laws
    pass
else:  # laws do not time a machine, which others use too
    settings.register_profile("no_deadline", settings.default, deadline=None)
    settings.load_profile("no_deadline")


@pytest.fixture(autouse=True)
def no_log_handlers_are_left_behind() -> Iterator[None]:
    """A command sets up logging for its process; here its streams are gone with the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(before):
        if type(handler) in (logging.StreamHandler, logging.FileHandler):
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)
