"""The truth of the synthetic corpus: what each letter sounds like and how long it lasts.

T mel frames, M mel channels, K kinds of symbols.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from profforce.audio.files import resample
from profforce.audio.mel import MelSpectrogram
from profforce.config import MelConfig
from profforce.data.recipes.synthetic import (
    CONSONANTS,
    MEL,
    PAUSE_FRAMES,
    VOWELS,
    Sound,
    audio_of,
    sounds_of,
    synthesize,
)
from profforce.text.symbols import END_OF_SENTENCE

PAUSE = " "
"""Spaces, full stops and the end of a sentence sound alike."""
LAST_PAUSE_FRAMES = PAUSE_FRAMES["."] + PAUSE_FRAMES[END_OF_SENTENCE]
"""The longest pause of the corpus, with which every sentence ends."""
HELD_FRAMES = 16
"""Of a symbol said alone for its template; its middle hears nothing else."""
FLOOR_NEPERS = 5.0
"""Below the loudest template: what is fainter counts as silence, for there a model may err."""


@dataclass(frozen=True)
class Token:
    """A letter to be said, equal neighbours being one."""

    symbol: str
    frames: int
    """Of the run's mel definition."""


@dataclass(frozen=True)
class Templates:
    """The steady sound of every kind of symbol."""

    symbols: tuple[str, ...]
    mel: Tensor
    """``[K, M]`` natural-log amplitude, not below ``floor``."""
    floor: float


def letter_templates(mel: MelConfig) -> Templates:
    """Templates of all letters and the pause in the definition ``mel``."""
    symbols = (*sorted(VOWELS + CONSONANTS), PAUSE)
    held = [mel_of([Sound(symbol, HELD_FRAMES)], mel) for symbol in symbols]
    steady = torch.stack([one[len(one) // 2] for one in held])
    floor = float(steady.max()) - FLOOR_NEPERS
    return Templates(symbols, steady.clamp_min(floor), floor)


def tokens_of(text: str, mel: MelConfig) -> list[Token]:
    """What has to be said for ``text``, with the durations of the unvaried corpus."""
    return letters_of(sounds_of(text), mel)


def letters_of(sounds: Sequence[Sound], mel: MelConfig) -> list[Token]:
    """The letters among ``sounds``; neighbours that sound alike are one, pauses are left out.

    A pause of three frames between loud letters cannot be heard: the window is four hops wide.
    """
    letters = [(s.symbol, s.frames) for s in sounds if s.symbol not in PAUSE_FRAMES]
    return [
        Token(symbol, frames_in(sum(frames for _, frames in group), mel))
        for symbol, group in groupby(letters, key=lambda letter: letter[0])
    ]


def frames_in(frames: int, mel: MelConfig) -> int:
    """As many frames of ``mel`` as last as long as ``frames`` of the corpus, at least one."""
    scale = mel.sample_rate * MEL.hop_length / (MEL.sample_rate * mel.hop_length)
    return max(round(frames * scale), 1)


def mel_of(sounds: Sequence[Sound], mel: MelConfig) -> Tensor:
    """Mel ``[T, M]`` of ``sounds`` one after the other."""
    return _analysed(audio_of(sounds), mel)


def rendered(text: str, mel: MelConfig, variation: float = 0.0, reading: int = 0) -> Tensor:
    """Mel ``[T, M]`` of ``text`` as the corpus of this ``variation`` would say it, or another."""
    return _analysed(synthesize(text, variation, reading), mel)


def _analysed(audio: npt.NDArray[np.float32], mel: MelConfig) -> Tensor:
    sound = resample(torch.from_numpy(audio), MEL.sample_rate, mel.sample_rate)
    spectrogram: Tensor = MelSpectrogram(mel)(sound)
    return spectrogram
