"""Open a corpus of millions of utterances: time and memory of each phase, a process each.

    python tools/scale_check.py --utterances 10000000 --folder FOLDER

The manifest's lines share a hundred recordings: what is measured is the handling of lines. Ids and
texts all differ. With --limits the exit code is 1 if a phase after the first takes more than 30 s
or more than 2 GiB of memory of its own.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import soundfile

RECORDINGS = 100
MOST_S, MOST_MIB = 30.0, 2048.0
WORDS = (
    *("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with"),
    *("be", "by", "on", "not", "he", "his", "but", "at", "are", "this"),
)
PHASES = ("first opening", "second opening", "first batch", "batch in mid-epoch")


def make(folder: Path, count: int) -> None:
    """A manifest of ``count`` lines, unless it is there."""
    manifest = folder / "manifest.jsonl"
    if manifest.is_file():
        return
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for k in range(RECORDINGS):
        audio = rng.standard_normal(22050 * 4 + 400 * k) * 0.1
        soundfile.write(folder / f"wavs/{k}.wav", audio, 22050)
    aside = manifest.with_suffix(".part")
    with aside.open("w") as file:
        for k in range(count):
            words = " ".join(WORDS[int(c) * 2] for c in str(k))
            text = f"{words} {WORDS[k % 23]}."
            audio = f"wavs/{k % RECORDINGS}.wav"
            file.write(f'{{"id": "u{k:08d}", "audio": "{audio}", "text": "{text}"}}\n')
    aside.replace(manifest)


def phase(folder: Path, name: str, large: int | None) -> None:
    """One phase; prints seconds and MiB as JSON."""
    import torch

    from profforce.data import table

    table.LARGE = large or table.LARGE

    from profforce.config import DataConfig, MelConfig, TextConfig
    from profforce.data.batch import collate
    from profforce.data.corpus import load_corpus
    from profforce.data.sampler import BucketSampler

    torch.set_num_threads(1)
    before = memory()["VmRSS"]
    began = time.perf_counter()
    corpus = load_corpus(DataConfig(root=str(folder)), TextConfig(), MelConfig())
    if name in PHASES[2:]:
        sampler = BucketSampler(corpus.train.num_frames, 32, 0, max_frames=20_000)
        number = 0 if name == PHASES[2] else len(sampler) // 2
        batch = collate([corpus.train[k] for k in sampler.batch(number)])
        assert len(batch)
    seconds = time.perf_counter() - began
    found = memory()
    row = {
        "phase": name,
        "seconds": round(seconds, 1),
        "peak_mib": round(found["VmHWM"]),
        "own_mib": round(found["RssAnon"]),
        "imports_mib": round(before),
        "utterances": len(corpus.train) + len(corpus.valid),
    }
    print(json.dumps(row))


def memory() -> dict[str, float]:
    """This process' memory in MiB, by the kernel's names."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rows = [line.split() for line in lines if line.startswith(("Vm", "Rss"))]
    return {row[0].rstrip(":"): int(row[1]) / 1024 for row in rows}


def main() -> int:
    """Every phase after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--utterances", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--large", type=int, help="utterances from which columns are kept")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        phase(options.folder, options.phase, options.large)
        return 0
    make(options.folder, options.utterances)
    failed = False
    for name in PHASES:
        words = [sys.executable, __file__, "--folder", str(options.folder), "--phase", name]
        words += ["--large", str(options.large)] if options.large else []
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        print(done.stdout.strip(), flush=True)
        row = json.loads(done.stdout)
        beyond = row["seconds"] > MOST_S or row["own_mib"] > MOST_MIB
        failed |= beyond and name != PHASES[0]
    return int(failed and options.limits)


if __name__ == "__main__":
    sys.exit(main())
