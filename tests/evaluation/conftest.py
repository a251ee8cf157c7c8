"""The truth of the synthetic corpus, once for all tests."""

import pytest

from profforce.config import MelConfig
from profforce.evaluation.letters import Templates, letter_templates


@pytest.fixture(scope="session")
def templates() -> Templates:
    return letter_templates(MelConfig())
