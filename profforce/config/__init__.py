"""Typed settings and their checks. Plain dataclasses: nothing here knows Hydra.

Units are in the names or docstrings. A value that cannot work raises ``ValueError`` naming the
key, what was given and what is allowed; the command line turns it into one line.
"""

from profforce.config.bench import TRAINING_SUITES, BenchConfig, BenchDtype, TrainingBenchConfig
from profforce.config.data import MISSING_TEXT, DataConfig, DataKind
from profforce.config.discriminator import DiscriminatorConfig, DiscriminatorKind, GanLoss
from profforce.config.evaluate import EvaluateConfig, JudgeName
from profforce.config.faults import FaultConfig
from profforce.config.freerun import FreerunConfig
from profforce.config.mel import MelConfig
from profforce.config.method import MethodConfig, MethodName
from profforce.config.model import (
    Activation,
    Attention,
    CrossAttentionKind,
    FeatureMap,
    ModelConfig,
    ModelKind,
    PositionsKind,
)
from profforce.config.precision import Precision, TrainerPrecision
from profforce.config.sample import AudioFormat, AudioSubtype, SampleConfig, VocoderKind
from profforce.config.text import TextConfig, TextFrontEnd
from profforce.config.train import TrainConfig
from profforce.config.trainer import BestBy, TrainerConfig

__all__ = [
    "MISSING_TEXT",
    "TRAINING_SUITES",
    "Activation",
    "Attention",
    "AudioFormat",
    "AudioSubtype",
    "BenchConfig",
    "BenchDtype",
    "BestBy",
    "CrossAttentionKind",
    "DataConfig",
    "DataKind",
    "DiscriminatorConfig",
    "DiscriminatorKind",
    "EvaluateConfig",
    "FaultConfig",
    "FeatureMap",
    "FreerunConfig",
    "GanLoss",
    "JudgeName",
    "MelConfig",
    "MethodConfig",
    "MethodName",
    "ModelConfig",
    "ModelKind",
    "PositionsKind",
    "Precision",
    "SampleConfig",
    "TextConfig",
    "TextFrontEnd",
    "TrainConfig",
    "TrainerConfig",
    "TrainerPrecision",
    "TrainingBenchConfig",
    "VocoderKind",
]
