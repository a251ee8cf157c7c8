"""A corpus of noise, so that a training can be timed where there is no corpus.

Lengths are what a step's time depends on; the contents are not. T mel frames, S symbols, M mel
channels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from profforce.config import TrainConfig
from profforce.data.corpus import Corpus, CorpusReport
from profforce.data.dataset import MelDataset
from profforce.data.features import Mel, MelFeatures
from profforce.data.manifest import Utterance
from profforce.text.tokenizer import Tokenizer

NOISE_FRAMES = 1024
"""Frames that the utterances share."""
NUM_VALID = 2


class NoiseFeatures(MelFeatures):
    """Mels of the given lengths, all of them cut from one piece of normal noise."""

    def __init__(self, num_frames: Sequence[int], num_mels: int, seed: int) -> None:
        self.num_frames = np.array(num_frames, dtype=np.int64)
        size = (max(NOISE_FRAMES, *num_frames), num_mels)
        self.noise = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.num_frames)

    def __getitem__(self, position: int) -> Mel:
        """float32 [T, M]."""
        return self.noise[: self.num_frames[position]]

    def select(self, positions: Sequence[int]) -> "NoiseFeatures":
        """The features of some of the utterances."""
        raise NotImplementedError("noise has no sides to be split into")


def noise_corpus(config: TrainConfig, lengths: Sequence[tuple[int, int]]) -> Corpus:
    """Utterances of the lengths ``(T, S)``, one speaker; deterministic in ``config.seed``."""
    tokenizer = Tokenizer(config.text)
    train, valid = (
        _dataset(config, rows, len(tokenizer.symbols)) for rows in (lengths, lengths[:NUM_VALID])
    )
    seconds = sum(frames for frames, _ in lengths) * config.mel.hop_length / config.mel.sample_rate
    report = CorpusReport(len(train), len(valid), seconds)
    return Corpus(train, valid, tokenizer, (), config.mel, report)


def spread_lengths(frames: int, symbols: int, count: int) -> list[tuple[int, int]]:
    """``count`` lengths ``(T, S)`` evenly from half to one and a half of the means."""
    share = np.linspace(0.5, 1.5, count) if count > 1 else np.ones(1)
    return [(max(1, round(frames * x)), max(1, round(symbols * x))) for x in share]


def _dataset(
    config: TrainConfig, lengths: Sequence[tuple[int, int]], num_symbols: int
) -> MelDataset:
    source = torch.Generator().manual_seed(config.seed)
    utterances = [
        Utterance(str(i), Path(f"{i}.wav"), "", "", None, f"noise:{i}") for i in range(len(lengths))
    ]
    symbols = [torch.randint(1, num_symbols, (size,), generator=source) for _, size in lengths]
    features = NoiseFeatures([size for size, _ in lengths], config.mel.num_mels, config.seed)
    return MelDataset(utterances, symbols, features)
