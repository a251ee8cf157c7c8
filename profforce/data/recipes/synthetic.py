"""Sounding letters: every letter a chord of its own that lasts a number of frames of its own.

So the true alignment of text and mel is known. ``durations.jsonl`` holds the frames of each
symbol, end-of-sentence included. Nothing but numpy is needed and seconds suffice.
"""

import json
import random
import string

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


def make(data: DataConfig, progress: Progress | None = None) -> None:
    """Write ``data.num_utterances`` (64 when unset) utterances; existing files are kept."""
    root = corpus_root(data)
    texts = synthetic_texts(data.num_utterances or NUM_UTTERANCES)
    report = progress or silent
    rows = []
    for number, text in enumerate(texts):
        name = f"synthetic-{number:05d}"
        path = root / "wavs" / f"{name}.wav"
        if not is_whole_wav(path):
            write_audio(path, torch.from_numpy(synthesize(text)), MEL.sample_rate)
        rows.append((name, text))
        report("sounding letters", number + 1, len(texts))
    lines = [
        json.dumps({"id": name, "symbols": symbols_of(text), "frames": durations(text)})
        for name, text in rows
    ]
    write_text(root / DURATIONS, "".join(f"{line}\n" for line in lines))
    facts = {
        "seed": SEED,
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


def durations(text: str) -> list[int]:
    """Mel frames of each of :func:`symbols_of`."""
    return [_frames(symbol) for symbol in symbols_of(text)]


def synthesize(text: str) -> npt.NDArray[np.float32]:
    """Audio [N]; N is the sum of the durations times the hop."""
    return np.concatenate([_sound(symbol) for symbol in symbols_of(text)])


def _syllables(rng: random.Random) -> list[str]:
    count = rng.randint(*SYLLABLES)
    return [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(count)]


def _frames(symbol: str) -> int:
    if symbol in PAUSE_FRAMES:
        return PAUSE_FRAMES[symbol]
    low, high = LETTER_FRAMES
    return low + string.ascii_lowercase.index(symbol) * 5 % (high - low + 1)


def _sound(symbol: str) -> npt.NDArray[np.float32]:
    num_samples = _frames(symbol) * MEL.hop_length
    time = np.arange(num_samples) / MEL.sample_rate
    if symbol in PAUSE_FRAMES:
        partials, amplitude = [PAUSE_HZ], PAUSE_AMPLITUDE
    else:
        place = string.ascii_lowercase.index(symbol)
        partials = [low + gap * (place * stride % 26) for low, gap, stride in PARTIALS_HZ]
        amplitude = AMPLITUDE
    chord = np.sum([np.sin(2 * np.pi * hz * time) for hz in partials], axis=0)
    ramp = np.minimum(1, (1 + np.arange(num_samples)) / FADE_SAMPLES)
    sound: npt.NDArray[np.float32] = (amplitude * chord * ramp * ramp[::-1]).astype(np.float32)
    return sound
