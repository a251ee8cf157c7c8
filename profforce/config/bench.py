"""Benchmarks."""

from dataclasses import dataclass, field
from enum import StrEnum

from profforce.config.checks import in_range
from profforce.config.train import TrainConfig


class BenchDtype(StrEnum):
    """Type of the inputs of a benchmark."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass
class BenchConfig:
    """Settings of ``profforce bench`` beside where the results go."""

    suite: str = "kernel"
    shapes: list[str] | None = None
    """Sizes as the suite writes them, such as ``[8x4x500x32]``; its own when unset."""
    forms: list[str] | None = None
    """Only these; all that the suite has when unset. What is derived from all is left out then."""
    device: str = "auto"
    dtype: BenchDtype = BenchDtype.float32
    threads: int | None = None
    """CPU threads of torch; its default when unset."""
    repeats: int = 10
    """Rounds that are counted; each takes every form once, in a new order."""
    warmup: int = 1
    """Rounds before those."""
    seed: int = 0
    peers: bool = False
    """Also other people's implementations, where they are installed."""
    memory: bool = True
    """Read each form's peak memory, on the CPU in a process of its own."""
    check: bool = True
    """Compare each form's results with a reference in float64."""
    budget: float = 0.05
    """Suite epoch: most of a step's time, on average, that generating samples may take."""
    max_uses: float = 1.0
    """Suite epoch: how often a generated sample is to be used at most."""

    def __post_init__(self) -> None:
        in_range("bench", self, ("repeats", "threads"), 1)
        in_range("bench", self, ("warmup",), 0)
        in_range("bench", self, ("budget",), 0, 1, above=True, below=True)
        in_range("bench", self, ("max_uses",), 0, above=True)


TRAINING_SUITES = ("train", "epoch")
"""Suites of the bench that take a :class:`TrainingBenchConfig`."""


@dataclass
class TrainingBenchConfig(BenchConfig):
    """Settings of a suite that times a training; no schema of Hydra, which composes each part."""

    training: TrainConfig = field(default_factory=TrainConfig)
    words: list[str] = field(default_factory=list)
    """Overrides that ``training`` was composed from, for the record."""
    from_corpus: bool = False
    """Take lengths from the corpus that ``training.data`` names instead of noise."""
