"""How runs are measured."""

from dataclasses import dataclass, field
from enum import StrEnum

from profforce.config.checks import in_range
from profforce.config.sample import SampleConfig


class JudgeName(StrEnum):
    """Who judges what is heard: errors of hearing, two predictors of opinion, the voice."""

    whisper = "whisper"
    distillmos = "distillmos"
    dnsmos = "dnsmos"
    speaker = "speaker"


@dataclass
class EvaluateConfig(SampleConfig):
    """Settings of ``profforce evaluate``: how the runs sample, and what is measured."""

    retries: int = 0
    """Retries would hide the failures of the first takes, which are what is measured."""
    attention_window: int | None = None
    num_utterances: int | None = None
    """At most so many texts. When unset, 32 held-out utterances, spread over their lengths, or all
    texts that are given."""
    pitch: bool = True
    """Compare the fundamental frequency with that of the recordings."""
    timing: bool = False
    """Write the real-time factor into the files too, which are then never the same twice."""
    judges: list[JudgeName] = field(default_factory=list)
    """Who else judges the sound, such as ``[whisper,distillmos,dnsmos,speaker]`` (extras ``judges``
    and ``speaker``)."""
    listen: bool = False
    """Count the words that Whisper mishears (English): ``judges=[whisper]``, also beside others."""
    num_voice_recordings: int = 16
    """Recordings of training, a speaker, whose mean voice the judge ``speaker`` compares with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("evaluate", self, ("num_utterances", "num_voice_recordings"), 1)

    @property
    def all_judges(self) -> tuple[JudgeName, ...]:
        """Those asked for, each once, in one order."""
        asked = {*self.judges, *((JudgeName.whisper,) if self.listen else ())}
        return tuple(name for name in JudgeName if name in asked)
