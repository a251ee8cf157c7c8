"""Everything one run depends on."""

from dataclasses import dataclass, field

from profforce.config.data import DataConfig
from profforce.config.discriminator import DiscriminatorConfig
from profforce.config.freerun import FreerunConfig
from profforce.config.mel import MelConfig
from profforce.config.method import MethodConfig, MethodName
from profforce.config.model import ModelConfig
from profforce.config.text import TextConfig
from profforce.config.trainer import TrainerConfig


@dataclass
class TrainConfig:
    """Everything one run depends on."""

    seed: int = 0
    device: str = "auto"
    """auto takes CUDA where it exists; or cpu, cuda, cuda:1, mps."""
    init_from: str | None = None
    """Run or checkpoint folder whose weights a new run starts from, as far as they fit; embeddings
    are taken by symbol and by speaker. Not looked at by ``--resume``."""
    mel: MelConfig = field(default_factory=MelConfig)
    text: TextConfig = field(default_factory=TextConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    freerun: FreerunConfig = field(default_factory=FreerunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, str) and self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        if self.method.name == MethodName.through_time and self.discriminator.use_alignments:
            raise ValueError(
                "discriminator.use_alignments must be false with method=through_time, "
                "which keeps no alignments"
            )

    @property
    def pool_batch_size(self) -> int:
        """Pool samples of a forced step."""
        return self.freerun.batch_size or max(1, self.trainer.batch_size // 2)

    @property
    def pool_max_frames(self) -> int | None:
        """Budget of a forced step's pool samples in frames: half of the recordings'."""
        frames = self.trainer.max_frames
        return None if frames is None else max(1, frames // 2)
