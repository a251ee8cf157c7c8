"""Judges of what is heard: every sound of a text goes before each of them.

A run's free-running speech, its teacher-forced pass, the recording through mel and vocoder, and the
recording as it is: a judge's own taste and the vocoder's share show in the last two. N samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from profforce.audio.files import resample
from profforce.audio.vocoder import Vocoder
from profforce.data.progress import Progress
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.figures import FORCED, RECORDED, VOCODED, Row
from profforce.evaluation.material import Material, Recording

JUDGE_HZ = 16_000
"""Rate that all of them were trained on."""
MIN_WORDS, MIN_LETTERS = 4, 20
"""Of a text to be scored, one of the two: of a word or two nobody judges fairly."""


@dataclass(frozen=True)
class Take:
    """One sound of a text."""

    text: str
    audio: Tensor
    """``[N]`` at 16 kHz, full scale 1.0, finite."""
    suffix: str = ""
    """Of its figures' keys: which of the sounds it is."""
    recording: Recording | None = None
    """How a person said the same text."""
    speaker: str | None = None
    """Whose voice it should be."""
    voice: Sequence[Recording] = ()
    """Other recordings of that speaker."""


class Judge(Protocol):
    """Gives figures of a sound."""

    def __call__(self, take: Take) -> Row:
        """Figures of ``take`` under their keys, its suffix included; none that it cannot give."""
        ...


class OfSentences:
    """A judge that gives nothing for texts of a word or two.

    Of real recordings too, those under 1.6 s lose 0.6 to 1.4 points of opinion, and a tenth to a
    third of their likeness to the speaker. The text decides: a sentence cut short is judged.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def __call__(self, take: Take) -> Row:
        """What the judge says of a sentence."""
        letters = sum(map(str.isalnum, take.text))  # for scripts that write no spaces
        enough = len(take.text.split()) >= MIN_WORDS or letters >= MIN_LETTERS
        return self.judge(take) if enough else {}


def judged(
    evaluations: Sequence[Evaluation],
    material: Material,
    judges: Sequence[Judge],
    progress: Progress | None = None,
) -> list[Evaluation]:
    """``evaluations`` with what ``judges`` say in their rows; of the recordings in every one.

    Args:
        evaluations: of ``material``, at least one; recordings take the vocoder of the first.
        material: texts, and recordings and voices if there are any.
        judges: who judges, in the order of their figures.
        progress: told of each utterance.
    """
    shared: list[Row] = []
    for i in range(len(material.requests)):
        shared.append(_of_recording(material, i, judges, evaluations[0].vocoder))
        if progress is not None and material.recordings is not None:
            progress("judging recordings", i + 1, len(material.requests))
    return [_of_run(one, material, shared, judges, progress) for one in evaluations]


def _of_run(
    one: Evaluation,
    material: Material,
    shared: Sequence[Row],
    judges: Sequence[Judge],
    progress: Progress | None,
) -> Evaluation:
    rows = []
    for i, (row, spoken) in enumerate(zip(one.rows, one.spoken, strict=True)):
        sounds = {"": _as_judged(spoken.audio, one.mel.sample_rate)}
        if one.forced is not None:
            sounds[FORCED] = _vocoded(one.forced[i], one.vocoder)
        rows.append({**row, **_figures(material, i, sounds, judges), **shared[i]})
        if progress is not None:
            progress(f"judging {one.run}", i + 1, len(one.rows))
    return one.with_rows(rows)


def _of_recording(material: Material, i: int, judges: Sequence[Judge], vocoder: Vocoder) -> Row:
    if material.recordings is None:
        return {}
    recording = material.recordings[i]
    sounds = {VOCODED: _vocoded(recording.mel, vocoder), RECORDED: recording.audio(JUDGE_HZ)}
    return _figures(material, i, sounds, judges)


def _figures(material: Material, i: int, sounds: dict[str, Tensor], judges: Sequence[Judge]) -> Row:
    """What all say of ``sounds``, ``[N]`` at 16 kHz by their suffix; nothing of none or broken."""
    request, row = material.requests[i], Row()
    recording = None if material.recordings is None else material.recordings[i]
    voice = material.voices.get(request.speaker, [])
    for suffix, audio in sounds.items():
        if len(audio) and bool(torch.isfinite(audio).all()):
            take = Take(request.text, audio, suffix, recording, request.speaker, voice)
            for judge in judges:
                row |= judge(take)
    return row


def _vocoded(mel: Tensor, vocoder: Vocoder) -> Tensor:
    return _as_judged(vocoder(mel), vocoder.mel.sample_rate)


def _as_judged(audio: Tensor, rate: int) -> Tensor:
    """``audio [N]`` at their rate; nothing of nothing."""
    return resample(audio.cpu().float(), rate, JUDGE_HZ) if len(audio) else audio
