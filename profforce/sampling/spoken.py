"""What was spoken: parts, and the utterance they make.

Shapes: S symbols, T mel frames, M mel channels, U decoder steps, N samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from profforce.audio.join import FADE_S, join_audio, join_mels
from profforce.config import MelConfig
from profforce.models.metrics import alignment_coverage
from profforce.sampling.faults import Fault
from profforce.sampling.request import Request
from profforce.sampling.script import Script
from profforce.sampling.stopping import StoppedBy
from profforce.text.sentences import Gap


@dataclass(frozen=True)
class SpokenPart:
    """One synthesised piece of a text."""

    text: str
    gap: Gap
    symbols: list[str]
    """What the model read, end-of-sentence included."""
    audio: Tensor
    """``[N]``, full scale 1.0."""
    mel: Tensor
    """``[T, M]``, natural-log amplitude."""
    alignment: Tensor
    """``[U, S]``, the clearest guided head."""
    stop_probability: Tensor
    """``[T]``"""
    stopped_by: StoppedBy
    faults: list[Fault]
    """What is wrong with it; times are the part's own."""
    retries: int
    """Attempts made beside the first one; the best is here."""
    held: bool
    """Attention was held to its way."""
    seconds_spent: float = 0.0
    """Its share of the computing time."""

    @property
    def coverage(self) -> float:
        """Share of the symbols that were attended."""
        return alignment_coverage(self.alignment)


@dataclass(frozen=True)
class Spoken:
    """One synthesised text."""

    request: Request
    parts: list[SpokenPart]
    starts: list[int]
    """First frame of each part."""
    audio: Tensor
    """``[N]``, full scale 1.0, N = T times the hop length."""
    mel: Tensor
    """``[T, M]``, natural-log amplitude; the pauses hold the mel of silence."""
    warnings: list[str]

    @property
    def text(self) -> str:
        """What was to be spoken."""
        return self.request.text

    @property
    def stopped_by(self) -> StoppedBy:
        """What ended its parts: the stop head all of them, or the worst of what ended one."""
        order = list(StoppedBy)
        return max((part.stopped_by for part in self.parts), key=order.index)

    @property
    def retries(self) -> int:
        """Attempts made beside the first ones of all parts."""
        return sum(part.retries for part in self.parts)

    @property
    def coverage(self) -> float:
        """Share of the symbols of all parts that were attended."""
        symbols = sum(len(part.symbols) for part in self.parts)
        return sum(part.coverage * len(part.symbols) for part in self.parts) / symbols

    @property
    def seconds_spent(self) -> float:
        """Its share of the computing time."""
        return sum(part.seconds_spent for part in self.parts)


@dataclass(frozen=True)
class Pauses:
    """Silence between parts, in seconds."""

    sentence_s: float
    paragraph_s: float

    def seconds(self, gap: Gap) -> float:
        """Half a sentence's after a clause, none where a sentence was cut at a word."""
        return {
            Gap.word: 0.0,
            Gap.clause: self.sentence_s / 2,
            Gap.sentence: self.sentence_s,
            Gap.paragraph: self.paragraph_s,
        }[gap]


def assemble(script: Script, parts: Sequence[SpokenPart], pauses: Pauses, mel: MelConfig) -> Spoken:
    """The utterance of ``script`` from its ``parts``; pauses are whole frames."""
    rate = mel.sample_rate / mel.hop_length
    frames = [round(pauses.seconds(part.gap) * rate) for part in parts[:-1]]
    starts = [0]
    for part, pause in zip(parts, frames, strict=False):
        starts.append(starts[-1] + len(part.mel) + pause)
    return Spoken(
        request=script.request,
        parts=list(parts),
        starts=starts,
        audio=join_audio(
            [part.audio for part in parts],
            [pause * mel.hop_length for pause in frames],
            fade=round(FADE_S * mel.sample_rate),
        ),
        mel=join_mels([part.mel for part in parts], frames, silence=math.log(mel.log_floor)),
        warnings=[*script.warnings, *_held(parts)],
    )


def _held(parts: Sequence[SpokenPart]) -> list[str]:
    held = [str(number) for number, part in enumerate(parts, 1) if part.held]
    if not held:
        return []
    where = "" if len(parts) == 1 else f" in pieces {', '.join(held)}"
    return [f"attention was held to the order of the text{where}"]
