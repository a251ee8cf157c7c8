"""The demo corpus: sentences of a closed vocabulary read by one synthetic voice, offline."""

import hashlib
import logging
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from profforce.audio.files import resample, write_audio
from profforce.config import DataConfig
from profforce.data.corpus import corpus_root
from profforce.data.parallel import map_unordered, num_cpus
from profforce.data.progress import Progress, silent
from profforce.data.recipes.common import (
    is_whole_wav,
    require,
    write_metadata,
    write_provenance,
)

log = logging.getLogger(__name__)

TEXTS = "profforce.texts"
VOICE = "heart"
SPEED = 1.0
SAMPLE_RATE = 22050


def demo_texts(name: str = "demo") -> list[str]:
    """Sentences of ``demo`` (training) or ``demo_unseen`` (the same domain, none of them seen)."""
    if find_spec(TEXTS) is not None:
        text = files(TEXTS).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    else:  # a checkout that is not installed
        folder = Path(__file__).resolve().parents[3] / "data" / "texts"
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


@dataclass(frozen=True)
class Task:
    """A sentence to read into a file."""

    text: str
    path: Path


def make(data: DataConfig, progress: Progress | None = None) -> None:
    """Read the demo sentences into ``data.root``; what is already there is kept.

    Raises :class:`UserError` when the reader (extra ``demo``) is not installed.
    """
    root = corpus_root(data)
    _, version = require(
        "hibari", distribution="hibari-tts", extra="demo", why="the demo corpus is read aloud and"
    )
    texts = demo_texts()[: data.num_utterances]
    names = [utterance_id(text, version) for text in texts]
    tasks = [Task(t, root / "wavs" / f"{n}.wav") for t, n in zip(texts, names, strict=True)]
    _read_aloud([task for task in tasks if not is_whole_wav(task.path)], progress or silent)
    write_provenance(
        root,
        "demo",
        {
            "reader": f"hibari-tts {version}",
            "voice": VOICE,
            "speed": SPEED,
            "licence": "texts MIT, voice Apache-2.0",
        },
    )
    write_metadata(root, ((n, t, t) for n, t in zip(names, texts, strict=True)))


def utterance_id(text: str, version: str) -> str:
    """Name that changes with whatever changes the sound, so that a kept file is the right one."""
    key = f"{version}|{VOICE}|{SPEED}|{SAMPLE_RATE}|{text}"
    return f"demo-{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def read_sentence(task: Task) -> None:
    """Read one sentence aloud; the same text gives the same samples."""
    reader = _reader()
    samples = reader(task.text, speed=SPEED, seed=zlib.crc32(task.text.encode()))
    audio = resample(torch.from_numpy(samples), reader.sample_rate, SAMPLE_RATE)
    write_audio(task.path, audio, SAMPLE_RATE)


def _read_aloud(tasks: list[Task], progress: Progress) -> None:
    num_workers = min(num_cpus(), -(-len(tasks) // 100))
    if tasks:
        log.info("reading %d sentences in %d processes", len(tasks), num_workers)
    for done, _ in enumerate(map_unordered(read_sentence, tasks, num_workers=num_workers), 1):
        progress("reading the demo sentences", done, len(tasks))


@cache
def _reader() -> Any:
    from hibari import Hibari

    torch.set_num_threads(1)
    return Hibari(voice=VOICE, threads=1)
