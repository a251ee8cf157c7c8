"""When the discriminator and its gradient are let through (Lamb et al. 2016, section 3)."""

from dataclasses import dataclass

from profforce.config import MethodConfig


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

    def weights(self, step: int) -> tuple[float, float]:
        """(C_f, C_t) at ``step``: ramped up from the start step, zero while the gate is shut.

        Terms that come every ``interval`` steps weigh as many times as much.
        """
        config = self.config
        if step < config.start_step or not self.model_open:
            return 0.0, 0.0
        ramp = min(1.0, (step - config.start_step + 1) / max(config.ramp_steps, 1))
        factor = ramp * config.interval
        return factor * config.weight, factor * config.teacher_weight
