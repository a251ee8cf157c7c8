"""Damaged manifests and wavs by the seed. By hand: python -m tests.data.check_fuzz 10000"""

import logging
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import soundfile

from profforce.config import DataConfig, MelConfig, TextConfig
from profforce.data.check.run import check_corpus
from profforce.data.corpus import load_corpus
from profforce.errors import UserError
from tests.data.check_cases import NUMBERS, tone

PIECES = [
    *(
        b"|",
        b"||",
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"\t",
        b",",
        b"../",
        b"/",
        b"\\",
        b"C:",
        b'"',
        b"{",
    ),
    *(b"}", b"[", b"[" * 3000, b"id|text", b"u1|", b"wavs/u2.wav", b'"text"', b'"speaker": "a"'),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xe9", b"\xc3\xa9", b"\xe2\x80\x8b", b"\\ud800", b"\\u0000"),
    *(b"x" * 300, b"1e999", b"9" * 5000, b"NaN", b"null", b"&amp;", b"<b>", b" " * 50),
    *(b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"data", b"fmt ", b"RIFX", b"LIST"),
]


def damage(raw: bytes, rng: random.Random, *, reach: int) -> bytes:
    """``raw`` with one to four changes among its first ``reach`` bytes."""
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(changed), reach) + 1) if changed else 0
        size = rng.choice([1, 1, 2, 4, 16, 200])
        match rng.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                changed[at:at] = rng.choice(PIECES)
            case 2:
                del changed[at : at + size]
            case 3:
                piece = rng.choice(PIECES)
                changed[at : at + len(piece)] = piece
            case 4:
                changed[at:at] = changed[at : at + size]
    return bytes(changed)


class Fuzz:
    """A corpus of five short utterances in ``root``, one of its files damaged at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "wavs").mkdir()
        for k, subtype in enumerate(["PCM_16", "FLOAT", "PCM_24", "PCM_U8", "PCM_16"]):
            samples = tone(0.4, hz=200 + 10 * k)
            if k == 4:
                samples = np.stack([samples, samples], axis=1)
            soundfile.write(self.wav(k), samples, 22050, subtype=subtype)
        lines = [f"u{k}|{number}.|{number}." for k, number in enumerate(NUMBERS[:5])]
        rows = [
            f'{{"audio": "wavs/u{k}.wav", "text": "{number}.", "id": "u{k}", "speaker": "ann"}}'
            for k, number in enumerate(NUMBERS[:5])
        ]
        self.manifests = {
            "metadata.csv": "".join(line + "\n" for line in lines).encode(),
            "manifest.jsonl": "".join(row + "\n" for row in rows).encode(),
        }
        self.sounds = {k: self.wav(k).read_bytes() for k in range(5)}

    def wav(self, k: int) -> Path:
        return self.root / "wavs" / f"u{k}.wav"

    def run(self, seed: int) -> tuple[bool, str]:
        """Whether the check finds the damaged corpus usable, and what training says or ""."""
        rng = random.Random(seed)
        if seed % 20 == 0:  # every damaged sound is a new shard to look through
            shutil.rmtree(self.root / "features", ignore_errors=True)
        name = rng.choice(list(self.manifests))
        other = next(key for key in self.manifests if key != name)
        (self.root / other).unlink(missing_ok=True)
        manifest, k = self.manifests[name], rng.randrange(5)
        if rng.random() < 0.5:
            manifest = damage(manifest, rng, reach=len(manifest))
            sound = self.sounds[k]
        else:
            sound = damage(self.sounds[k], rng, reach=rng.choice([60, 1000]))
        (self.root / name).write_bytes(manifest)
        self.wav(k).write_bytes(sound)
        try:
            data = DataConfig(root=str(self.root), valid_fraction=0.4)
            usable = check_corpus(data, TextConfig(), MelConfig()).is_usable
            try:
                load_corpus(data, TextConfig(), MelConfig())
            except UserError as error:
                return usable, str(error)
            return usable, ""
        finally:
            self.wav(k).write_bytes(self.sounds[k])


def main(first: int, last: int) -> None:
    logging.disable(logging.WARNING)
    outcomes: Counter[tuple[bool, bool]] = Counter()
    slowest = 0.0
    with TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder))
        for seed in range(first, last):
            began = time.monotonic()
            usable, refusal = fuzz.run(seed)
            slowest = max(slowest, time.monotonic() - began)
            outcomes[usable, not refusal] += 1
            if usable != (not refusal):
                sys.stdout.write(f"seed {seed}: check {usable}, training {refusal!r}\n")
    sys.stdout.write(f"(usable, trained): {dict(outcomes)}; slowest {slowest:.2f} s\n")


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] if len(sys.argv) > 2 else ["0", *sys.argv[1:]])))
