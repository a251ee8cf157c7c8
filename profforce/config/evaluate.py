"""How runs are measured."""

from dataclasses import dataclass

from profforce.config.checks import in_range
from profforce.config.sample import SampleConfig


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
    listen: bool = False
    """Count the words that Whisper mishears (English; extra ``judges``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range("evaluate", self, ("num_utterances",), 1)
