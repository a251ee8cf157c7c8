"""Small corpora made on the spot."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

MakeCorpus = Callable[..., Path]


def write_tone(path: Path, seconds: float, hz: float = 220.0, rate: int = 22050) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(round(seconds * rate)) / rate
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * hz * time), rate, subtype="PCM_16")


@pytest.fixture
def make_corpus(tmp_path: Path) -> MakeCorpus:
    """``make_corpus(texts, seconds=...)``: a folder with metadata.csv and distinct tones."""

    def make(texts: list[str], seconds: float | list[float] = 0.3) -> Path:
        lengths = seconds if isinstance(seconds, list) else [seconds] * len(texts)
        for k, length in enumerate(lengths):
            write_tone(tmp_path / "wavs" / f"u{k}.wav", length, 200.0 + k)
        lines = [f"u{k}|{text}\n" for k, text in enumerate(texts)]
        (tmp_path / "metadata.csv").write_text("".join(lines), encoding="utf-8")
        return tmp_path

    return make
