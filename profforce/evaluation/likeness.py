"""How alike the voice of a sound is to the one it should be: the cosine of their vectors.

N samples, E = 256 dimensions.
"""

from pathlib import Path

from torch import Tensor
from torch.nn.functional import normalize

from profforce.evaluation.figures import RECORDED, Row
from profforce.evaluation.judging import JUDGE_HZ, Take
from profforce.evaluation.material import Recording
from profforce.evaluation.voice import VoiceEncoder

DIGITS = 4


class Likeness:
    """``voice_recording``: to the recording of the same text; ``voice_training``: to the speaker.

    The speaker is the mean voice of some recordings of training, none of which is judged: so the
    recordings themselves show how alike to it a person is.
    """

    def __init__(self, encoder: VoiceEncoder) -> None:
        self.encoder = encoder
        self._recordings: dict[Path, Tensor | None] = {}
        self._speakers: dict[str | None, Tensor | None] = {}

    def __call__(self, take: Take) -> Row:
        """Two cosines, or what there is to compare with; nothing of silence."""
        own, row = self.encoder.voice(take.audio), Row()
        if own is None:
            return row
        if take.suffix != RECORDED and take.recording is not None:
            said = self._recorded(take.recording)
            row |= _alike(f"voice_recording{take.suffix}", own, said)
        return row | _alike(f"voice_training{take.suffix}", own, self._speaker(take))

    def _recorded(self, recording: Recording) -> Tensor | None:
        """The voice ``[E]`` of a recording, which is asked for again by every run."""
        if recording.path not in self._recordings:
            self._recordings[recording.path] = self.encoder.voice(recording.audio(JUDGE_HZ))
        return self._recordings[recording.path]

    def _speaker(self, take: Take) -> Tensor | None:
        """The mean voice ``[E]``; None without recordings that are heard."""
        if take.speaker not in self._speakers:
            heard = map(self._recorded, take.voice)
            voices = [voice for voice in heard if voice is not None]
            mean = normalize(sum(voices[1:], start=voices[0]), dim=0) if voices else None
            self._speakers[take.speaker] = mean
        return self._speakers[take.speaker]


def _alike(key: str, own: Tensor, other: Tensor | None) -> Row:
    return {} if other is None else {key: round(float(own @ other), DIGITS)}
