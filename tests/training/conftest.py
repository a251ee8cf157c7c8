"""A small synthetic corpus and a model that trains on it in seconds."""

from dataclasses import replace
from pathlib import Path

import crash_test
import pytest

from profforce.config import DataConfig, TextConfig, TrainConfig
from profforce.data.corpus import Corpus, load_corpus
from profforce.data.prepare import prepare


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The settings of the crash test, in which everything that has a state takes part."""
    return crash_test.settings_of(tmp_path_factory.mktemp("synthetic"), 12)


@pytest.fixture(scope="session")
def data(tiny: TrainConfig) -> DataConfig:
    prepare(tiny.data, TextConfig(), tiny.mel)
    return tiny.data


@pytest.fixture(scope="session")
def corpus(data: DataConfig, tiny: TrainConfig) -> Corpus:
    return load_corpus(data, TextConfig(), tiny.mel)


@pytest.fixture
def config(data: DataConfig, tiny: TrainConfig) -> TrainConfig:
    """With an expert beside the discriminator, whose terms are in every step."""
    method = {"imitation_weight": 0.5, "teacher_weight": 0.02, "gate_high": 1.0}
    return replace(
        tiny,
        seed=3,
        data=data,
        method=replace(tiny.method, **method, interval=1, ramp_steps=2),
        freerun=replace(tiny.freerun, every=3, ahead=0),
        trainer=replace(tiny.trainer, checkpoint_every=4, num_threads=None),
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"
