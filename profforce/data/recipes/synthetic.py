"""Sounding letters: every letter a chord of its own that lasts a number of frames of its own.

So the true alignment of text and mel is known. ``durations.jsonl`` holds the frames of each
symbol, end-of-sentence included. Nothing but numpy is needed and seconds suffice. With
``data.variation`` no two utterances are said alike: tempo, durations, pitch, loudness and noise
are drawn for each, by its text.
"""

import json
import math
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from profforce.audio.files import write_audio
from profforce.config import DataConfig, MelConfig
from profforce.data.corpus import corpus_root
from profforce.data.files import write_text
from profforce.data.progress import Progress, silent
from profforce.data.recipes.common import is_whole_wav, write_metadata, write_provenance
from profforce.text.normalize import normalize_text
from profforce.text.symbols import END_OF_SENTENCE

SEED = 0
NUM_UTTERANCES = 64
DURATIONS = "durations.jsonl"
MEL = MelConfig()
"""Frames are counted in this definition's sample rate and hop."""

VOWELS = "aeiou"
CONSONANTS = "".join(sorted(set(string.ascii_lowercase) - set(VOWELS)))
WORDS = (2, 5)
SYLLABLES = (1, 3)
PAUSE_FRAMES = {" ": 3, ".": 4, END_OF_SENTENCE: 2}
LETTER_FRAMES = (3, 8)
PARTIALS_HZ = ((220.0, 45.0, 1), (1500.0, 70.0, 7), (3500.0, 120.0, 11))
"""(lowest, spacing, stride) of the three partials; the strides are prime to 26."""
AMPLITUDE = 0.2
PAUSE_AMPLITUDE = 0.03
"""Pauses hum, so that trimming silence cannot shift the alignment."""
PAUSE_HZ = 110.0
FADE_SAMPLES = 64
SHORTEST_FRAMES = {True: 3, False: 2}
"""Of a letter, of a pause: below it no frame would hear the sound alone."""
TEMPO, LENGTH, VOICE_PITCH, PITCH, GAIN = 0.2, 0.3, 0.01, 0.005, 0.35
"""Largest log factors at full variation: an utterance's tempo, a symbol's length, an utterance's
pitch, a symbol's pitch and its amplitude. Neighbouring letters stay apart in pitch."""
NOISE_AMPLITUDE = 0.003


@dataclass(frozen=True)
class Sound:
    """One symbol as it is said."""

    symbol: str
    frames: int
    pitch: float = 1.0
    gain: float = 1.0


def make(data: DataConfig, progress: Progress | None = None) -> None:
    """Write ``data.num_utterances`` (64 when unset) utterances; existing files are kept."""
    root = corpus_root(data)
    texts = synthetic_texts(data.num_utterances or NUM_UTTERANCES)
    report = progress or silent
    variation = data.variation
    # named after what it sounds like, so that a kept file is the right one
    prefix = f"synthetic-v{variation:g}" if variation else "synthetic"
    rows = []
    for number, text in enumerate(texts):
        name = f"{prefix}-{number:05d}"
        path = root / "wavs" / f"{name}.wav"
        if not is_whole_wav(path):
            write_audio(path, torch.from_numpy(synthesize(text, variation)), MEL.sample_rate)
        rows.append((name, text))
        report("sounding letters", number + 1, len(texts))
    lines = [
        json.dumps({"id": name, "symbols": symbols_of(text), "frames": durations(text, variation)})
        for name, text in rows
    ]
    write_text(root / DURATIONS, "".join(f"{line}\n" for line in lines))
    facts = {
        "seed": SEED,
        "variation": variation,
        "sample_rate": MEL.sample_rate,
        "hop_length": MEL.hop_length,
        "licence": "MIT",
    }
    write_provenance(root, "synthetic", facts)
    write_metadata(root, ((name, text, text) for name, text in rows))


def synthetic_texts(count: int) -> list[str]:
    """Distinct sentences of made-up words; the first of them do not depend on ``count``."""
    rng = random.Random(SEED)
    found: dict[str, None] = {}
    while len(found) < count:
        words = ("".join(_syllables(rng)) for _ in range(rng.randint(*WORDS)))
        text = " ".join(words) + "."
        if normalize_text(text) == text:  # no word that is read as an abbreviation
            found[text] = None
    return list(found)


def symbols_of(text: str) -> list[str]:
    """The symbols that a tokenizer of graphemes makes of ``text``."""
    return [*text, END_OF_SENTENCE]


def durations(text: str, variation: float = 0.0) -> list[int]:
    """Mel frames of each of :func:`symbols_of`."""
    return [sound.frames for sound in sounds_of(text, variation)]


def sounds_of(text: str, variation: float = 0.0, reading: int = 0) -> list[Sound]:
    """How ``text`` is said at a ``variation`` between 0 and 1; 0 says every symbol always alike.

    The corpus has ``reading`` 0; each other one varies it in its own way.
    """
    if not variation:
        return [Sound(symbol, _frames(symbol)) for symbol in symbols_of(text)]
    rng = random.Random(_key(text, reading))

    def factor(most: float) -> float:
        return math.exp(variation * rng.uniform(-most, most))

    tempo, voice = factor(TEMPO), factor(VOICE_PITCH)
    return [_varied(symbol, tempo, voice, factor) for symbol in symbols_of(text)]


def synthesize(text: str, variation: float = 0.0, reading: int = 0) -> npt.NDArray[np.float32]:
    """Audio [N] of :func:`sounds_of`; N is the sum of the durations times the hop."""
    audio = audio_of(sounds_of(text, variation, reading))
    if variation:
        seed = random.Random(f"noise|{_key(text, reading)}").getrandbits(64)
        noise = np.random.default_rng(seed).standard_normal(len(audio))
        audio = (audio + variation * NOISE_AMPLITUDE * noise).astype(np.float32)
    return audio


def audio_of(sounds: Sequence[Sound]) -> npt.NDArray[np.float32]:
    """Audio [N] of ``sounds`` (at least one), without noise."""
    return np.concatenate([_chord(sound) for sound in sounds])


def _key(text: str, reading: int) -> str:
    return f"{SEED}|{text}" + (f"|{reading}" if reading else "")


def _varied(symbol: str, tempo: float, voice: float, factor: Callable[[float], float]) -> Sound:
    shortest = SHORTEST_FRAMES[symbol not in PAUSE_FRAMES]
    frames = max(round(_frames(symbol) * tempo * factor(LENGTH)), shortest)
    return Sound(symbol, frames, voice * factor(PITCH), factor(GAIN))


def _syllables(rng: random.Random) -> list[str]:
    count = rng.randint(*SYLLABLES)
    return [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(count)]


def _frames(symbol: str) -> int:
    if symbol in PAUSE_FRAMES:
        return PAUSE_FRAMES[symbol]
    low, high = LETTER_FRAMES
    return low + string.ascii_lowercase.index(symbol) * 5 % (high - low + 1)


def _chord(sound: Sound) -> npt.NDArray[np.float32]:
    num_samples = sound.frames * MEL.hop_length
    time = np.arange(num_samples) / MEL.sample_rate
    if sound.symbol in PAUSE_FRAMES:
        partials, amplitude = [PAUSE_HZ], PAUSE_AMPLITUDE
    else:
        place = string.ascii_lowercase.index(sound.symbol)
        partials = [low + gap * (place * stride % 26) for low, gap, stride in PARTIALS_HZ]
        amplitude = AMPLITUDE
    waves = [np.sin(2 * np.pi * hz * sound.pitch * time) for hz in partials]
    chord = amplitude * sound.gain * np.sum(waves, axis=0)
    ramp = np.minimum(1, (1 + np.arange(num_samples)) / FADE_SAMPLES)
    audio: npt.NDArray[np.float32] = (chord * ramp * ramp[::-1]).astype(np.float32)
    return audio
