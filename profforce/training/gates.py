"""When the discriminator and its gradient are let through (Lamb et al. 2016, section 3)."""

from dataclasses import dataclass

from profforce.config import MethodConfig


@dataclass(frozen=True)
class ForcingWeights:
    """What the terms on self-made frames weigh in one step."""

    free: float = 0.0
    """C_f: free-running behaviour that fools the discriminator."""
    teacher: float = 0.0
    """C_t: teacher-forced behaviour that looks free-running."""
    matching: float = 0.0
    """Equal mean features of both."""
    imitation: float = 0.0
    """What an expert says next."""
    attention: float = 0.0
    """What an expert attends to next."""

    @property
    def judged(self) -> bool:
        """The discriminator's gradient reaches the model."""
        return self.free > 0 or self.teacher > 0 or self.matching > 0

    @property
    def imitates(self) -> bool:
        """An expert's does."""
        return self.imitation > 0 or self.attention > 0


@dataclass
class Gates:
    """Moving average of the discriminator's accuracy, and the decisions drawn from it."""

    config: MethodConfig
    accuracy: float = 0.5
    """EMA of the accuracy; starts at chance."""

    def update(self, accuracy: float) -> None:
        """Take in one batch's accuracy."""
        decay = self.config.gate_decay
        self.accuracy = decay * self.accuracy + (1 - decay) * accuracy

    @property
    def model_open(self) -> bool:
        """The discriminator is good enough for its gradient to reach the model."""
        return self.accuracy > self.config.gate_low

    @property
    def discriminator_open(self) -> bool:
        """The discriminator is not yet too good to go on training."""
        return self.accuracy < self.config.gate_high

    def weights(self, step: int) -> ForcingWeights:
        """Weights at ``step``: ramped up from the start step.

        Those of the discriminator are zero while its gate is shut. Terms that come every
        ``interval`` steps weigh as many times as much.
        """
        config = self.config
        if step < config.start_step:
            return ForcingWeights()
        ramp = min(1.0, (step - config.start_step + 1) / max(config.ramp_steps, 1))
        factor = ramp * config.interval
        judged = factor * self.model_open
        return ForcingWeights(
            free=judged * config.weight,
            teacher=judged * config.teacher_weight,
            matching=judged * config.matching_weight,
            imitation=factor * config.imitation_weight,
            attention=factor * config.attention_weight,
        )
