"""The training method and its weights."""

from dataclasses import dataclass
from enum import StrEnum

from profforce.config.checks import in_range


class MethodName(StrEnum):
    """Training method."""

    teacher_forcing = "teacher_forcing"
    professor_forcing = "professor_forcing"
    through_time = "through_time"


@dataclass
class MethodConfig:
    """Teacher forcing, or professor forcing: training on the model's own outputs.

    Professor forcing learns from a pool of free runs: by default from an expert, who says what
    should follow the frames that the model made; with ``weight`` from a discriminator (Lamb et al.
    2016, arXiv:1610.09038). ``through_time`` takes a free run in every step instead, with gradients
    through what it feeds back. docs/professor_forcing.md has the figures.
    """

    name: MethodName = MethodName.teacher_forcing
    weight: float = 0.0
    """C_f: free-running behaviour has to fool the discriminator; 0 is off."""
    teacher_weight: float = 0.0
    """C_t: teacher-forced behaviour made to look free-running; 0 is off."""
    matching_weight: float = 0.0
    """Of the distance between the discriminator's mean features of both behaviours; 0 is off."""
    imitation_weight: float = 1.0
    """Of what an expert would say next after each self-made prefix: the recording, re-timed by
    dynamic time warping; 0 is off. The gates do not concern it."""
    attention_weight: float = 0.0
    """Of attending, after each self-made prefix, to what the recording's own pass attends to at
    what comes next; 0 is off."""
    start_step: int = 1000
    """First step with free runs; the discriminator trains from here."""
    ramp_steps: int = 0
    """Steps over which the weights grow from 0 to their value."""
    interval: int = 1
    """Steps from one with these terms to the next; they then count as many times (lazy
    regularisation, Karras et al. 2020, arXiv:1912.04958, section 3.1)."""
    gate_low: float = 0.75
    """Below this EMA accuracy of the discriminator, its gradient does not reach the model."""
    gate_high: float = 0.97
    """Above it, the discriminator itself rests."""
    gate_decay: float = 0.9
    recompute_steps: int | None = None
    """Of ``through_time``: keep activations at every so many decoder steps only and compute those
    between anew in the backward pass; all are kept when unset."""

    def __post_init__(self) -> None:
        weights = ("weight", "teacher_weight", "matching_weight")
        expert = ("imitation_weight", "attention_weight")
        in_range("method", self, (*weights, *expert, "start_step", "ramp_steps"), 0)
        in_range("method", self, ("interval",), 1)
        in_range("method", self, ("gate_low", "gate_high"), 0, 1)
        in_range("method", self, ("gate_decay",), 0, 1, below=True)
        in_range("method", self, ("recompute_steps",), 1)
        if self.gate_high < self.gate_low:
            raise ValueError(
                f"method.gate_high must be >= method.gate_low = {self.gate_low:g}, "
                f"got {self.gate_high:g}"
            )
        if self.name == MethodName.through_time and self.imitates:
            raise ValueError(
                "method.imitation_weight and method.attention_weight need a sample pool: they must "
                "be 0 with method.name=through_time"
            )
        if self.name != MethodName.teacher_forcing and not (self.judged or self.imitates):
            raise ValueError(
                f"method.name={self.name.value} learns nothing while all its weights are 0: set "
                "method.imitation_weight or method.weight, or take method=teacher_forcing"
            )

    @property
    def judged(self) -> bool:
        """A discriminator takes part."""
        return self.weight > 0 or self.teacher_weight > 0 or self.matching_weight > 0

    @property
    def imitates(self) -> bool:
        """An expert says what should follow the model's own frames."""
        return self.imitation_weight > 0 or self.attention_weight > 0
