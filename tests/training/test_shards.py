"""Training from tar files: the whole way by the command line, and a resume to the bit."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from profforce.config import DataConfig, TrainConfig
from profforce.data.webdata_pack import pack
from profforce.errors import UserError
from profforce.training.run import train
from tests.training.test_loop import StopAt, same_checkpoint


@pytest.fixture(scope="session")
def shards(data: DataConfig, tiny: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards") / "tars"
    pack(data, tiny.mel, out, samples=5, seed=1)
    return out


def test_a_resumed_run_reads_what_the_uninterrupted_one_read(
    config: TrainConfig, shards: Path, tmp_path: Path
) -> None:
    config = replace(config, data=replace(config.data, shards=str(shards), shuffle_buffer=10))
    train(config, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(config, tmp_path / "parts", report=StopAt(5, signal.SIGTERM))
    train(config, tmp_path / "parts", resume=True)
    same_checkpoint(tmp_path / "whole/checkpoints/step-12", tmp_path / "parts/checkpoints/step-12")


@pytest.mark.slow
def test_a_spawned_worker_reads_the_same(config: TrainConfig, shards: Path, tmp_path: Path) -> None:
    for num_workers in (0, 1):
        data = replace(config.data, shards=str(shards), num_workers=num_workers)
        few = replace(config.trainer, steps=3)
        train(replace(config, data=data, trainer=few), tmp_path / f"{num_workers}")
    same_checkpoint(tmp_path / "0/checkpoints/step-3", tmp_path / "1/checkpoints/step-3")


def test_other_tars_are_refused_on_resume(
    config: TrainConfig, shards: Path, tmp_path: Path
) -> None:
    config = replace(config, data=replace(config.data, shards=str(shards)))
    train(replace(config, trainer=replace(config.trainer, steps=2)), tmp_path / "run")
    fewer = replace(config, data=replace(config.data, shards=f"{shards}/shard-00000[0-3].tar"))
    with pytest.raises(UserError, match="the corpus differs from the run's"):
        train(fewer, tmp_path / "run", resume=True)
