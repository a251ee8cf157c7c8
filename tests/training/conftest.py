"""A small synthetic corpus and a model that trains on it in seconds."""

from dataclasses import replace
from pathlib import Path

import pytest

from profforce.config import (
    DataConfig,
    DataKind,
    DiscriminatorConfig,
    FreerunConfig,
    MelConfig,
    MethodConfig,
    MethodName,
    ModelConfig,
    TextConfig,
    TrainConfig,
    TrainerConfig,
)
from profforce.data.corpus import Corpus, load_corpus
from profforce.data.prepare import prepare

MEL = MelConfig(sample_rate=8000, n_fft=512, win_length=512, fmax_hz=4000.0, num_mels=20)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    root = tmp_path_factory.mktemp("synthetic")
    config = DataConfig(
        kind=DataKind.synthetic, root=str(root), num_utterances=24, valid_fraction=0.2
    )
    prepare(config, TextConfig(), MEL)
    return config


@pytest.fixture(scope="session")
def corpus(data: DataConfig) -> Corpus:
    return load_corpus(data, TextConfig(), MEL)


@pytest.fixture
def config(data: DataConfig) -> TrainConfig:
    return TrainConfig(
        seed=3,
        device="cpu",
        mel=MEL,
        data=data,
        model=replace(
            ModelConfig(),
            width=16,
            num_heads=2,
            encoder_layers=1,
            decoder_layers=1,
            feedforward_width=32,
            encoder_conv_layers=1,
            prenet_width=8,
            postnet_layers=2,
            postnet_width=8,
            reduction_factor=4,
            guided_layers=1,
            guided_heads=1,
        ),
        discriminator=DiscriminatorConfig(width=8, crop_steps=8),
        method=MethodConfig(
            name=MethodName.professor_forcing,
            weight=0.05,
            imitation_weight=0.5,
            start_step=2,
            ramp_steps=2,
            gate_low=0.0,
            gate_high=1.0,
            teacher_weight=0.02,
        ),
        freerun=FreerunConfig(every=3, pool_size=6, batch_size=4),
        trainer=TrainerConfig(
            steps=12,
            batch_size=5,
            warmup_steps=4,
            log_every=1,
            evaluate_every=6,
            checkpoint_every=4,
            num_eval_sentences=2,
        ),
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"
