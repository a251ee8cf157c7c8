"""What runs are to be measured on: a corpus' held-out utterances, or texts without recordings.

T mel frames, M mel channels, N samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from torch import Tensor

from profforce.audio.files import read_audio, trim_silence
from profforce.config import DataConfig, MelConfig, TrainConfig
from profforce.data.corpus import Corpus, load_corpus
from profforce.data.progress import Progress
from profforce.sampling.request import Request
from profforce.sampling.script import speaker_number
from profforce.training.gap import fixed_sentences

NUM_HELD_OUT = 32
"""Utterances, unless another number is asked for."""
LEAST_VOICE_S = 1.6
"""Of a recording that says who speaks."""
TEXTS, HARD = "profforce.texts", "hard_sentences.txt"


@dataclass(frozen=True)
class Recording:
    """How a person said a text."""

    mel: Tensor
    """``[T, M]``, natural-log amplitude."""
    path: Path
    trim_db: float | None
    """As its mel was made."""

    def audio(self, sample_rate: int) -> Tensor:
        """``[N]`` at ``sample_rate`` Hz, of the same stretch as the mel."""
        audio = read_audio(self.path, sample_rate)
        return audio if self.trim_db is None else trim_silence(audio, sample_rate, self.trim_db)


@dataclass(frozen=True)
class Material:
    """Texts, and how they should sound where that is known."""

    name: str
    requests: list[Request]
    recordings: list[Recording] | None = None
    """One a request; None if there are none."""
    mel: MelConfig | None = None
    """Of the recordings."""
    numbers: range | None = None
    """Of the requests among those of a larger material; from 0 on if this is all."""
    voices: dict[str | None, list[Recording]] = field(default_factory=dict)
    """Recordings of training of each speaker that the requests name, None where they name none;
    empty unless asked for, see :meth:`with_voices`."""

    def part(self, share: slice) -> "Material":
        """Some of it, which is measured as it would be among all."""
        return replace(
            self,
            requests=self.requests[share],
            recordings=None if self.recordings is None else self.recordings[share],
            numbers=range(len(self.requests))[share],
        )

    def with_voices(
        self, corpus: Corpus, data: DataConfig, count: int, speaker: str | None = None
    ) -> "Material":
        """The same with at most ``count`` recordings of every speaker it needs.

        Args:
            corpus: of the run; ``data`` are its settings.
            data: see there.
            count: of each speaker, the same ones every time.
            speaker: of requests that name none; the corpus' first when None.

        Raises:
            UserError: for a speaker that the corpus does not have.
        """
        names = dict.fromkeys(request.speaker for request in self.requests)
        voices = {name: _voice(corpus, data, count, name or speaker) for name in names}
        return replace(self, voices=voices)


def held_out(config: TrainConfig, count: int, progress: Progress | None = None) -> Material:
    """At most ``count`` utterances of the corpus that the training ``config`` never saw.

    Raises :class:`UserError` for whatever is wrong with the corpus.
    """
    corpus = load_corpus(config.data, config.text, config.mel, progress)
    return held_out_of(corpus, config.data, count)


def held_out_of(corpus: Corpus, data: DataConfig, count: int) -> Material:
    """At most ``count`` of the utterances that ``corpus`` holds out; ``data`` are its settings."""
    batch = fixed_sentences(corpus.valid, count)
    requests, recordings = [], []
    for i, position in enumerate(batch.indices.tolist()):
        utterance = corpus.valid.utterances[position]
        spoken = Request(batch.texts[i], utterance.where, utterance.id, utterance.speaker)
        mel = batch.mel[i, : int(batch.mel_lengths[i])]
        requests.append(spoken)
        recordings.append(Recording(mel, Path(utterance.audio), data.trim_db))
    return Material("held-out utterances", requests, recordings, corpus.mel)


def _voice(corpus: Corpus, data: DataConfig, count: int, speaker: str | None) -> list[Recording]:
    """Recordings of training of one speaker, at random; short ones only for want of others."""
    number = speaker_number(speaker, corpus.speakers)
    name = corpus.speakers[number] if corpus.speakers else None
    train, found, short = corpus.train, list[int](), list[int]()
    least = LEAST_VOICE_S * corpus.mel.sample_rate / corpus.mel.hop_length
    for position in np.random.default_rng(0).permutation(len(train)).tolist():
        if name is None or train.utterances[position].speaker == name:
            (found if train.num_frames[position] >= least else short).append(position)
        if len(found) == count:
            break
    return [
        Recording(train[position].mel, Path(train.utterances[position].audio), data.trim_db)
        for position in (found + short)[:count]
    ]


def hard_sentences(count: int | None) -> Material:
    """The first ``count``, or all, of the sentences that make models skip, repeat and babble."""
    lines = files(TEXTS).joinpath(HARD).read_text(encoding="utf-8").splitlines()
    requests = [Request(line, f"hard sentence {n}") for n, line in enumerate(lines, 1)]
    return Material("hard sentences", requests[:count])


def given_texts(name: str, requests: Sequence[Request], count: int | None) -> Material:
    """The first ``count`` of ``requests``, or all."""
    return Material(name, list(requests[:count]))
