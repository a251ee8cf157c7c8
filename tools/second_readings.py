"""How far two recordings of a text are apart, and a run's free run from them: where the gap ends.

    python tools/second_readings.py --run RUN [--readings 3] [--json FILE]
    python tools/compare_seeds.py --base A0.json A1.json --other B0.json B1.json

No two readings of a text are alike, and a teacher-forced pass reads along the one that it is
compared with. Where a corpus has a text twice, the pass along the other recording says how near a
model comes that makes no mistake of its own: docs/experiments.md, "the gap has a floor".
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from profforce.bridge import saved_settings
from profforce.data.corpus import load_corpus
from profforce.errors import UserError
from profforce.evaluation.exam import twice_read_exam
from profforce.evaluation.measure import examine_often, mean_row
from profforce.evaluation.statistics import mean_of
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.models.metrics import mel_cepstral_distortion
from profforce.text.words import words_in

FIGURES = {
    "mcd_recordings_db": "the recordings from each other",
    "mcd_forced_db": "teacher-forced",
    "mcd_other_db": "teacher-forced along the other recording",
    "mcd_free_db": "free-running",
    "mcd_gap_db": "gap: free-running less teacher-forced",
    "mcd_floor_db": "of it the floor: along the other less along this one",
    "mcd_excess_db": "and the excess",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if measured, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(1)
    try:
        rows = rows_of(options.run, options.checkpoint, options.min_words, options.readings)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"runs": [{"run": str(options.run), "rows": rows}]}
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"| MCD, dB, of {len(rows)} texts that were read twice | |\n|---|---:|")
    for name, said in FIGURES.items():
        found = mean_of(np.array([[row[name] for row in rows]]))
        print(f"| {said} | {found.mean:.2f} [{found.low:.2f}, {found.high:.2f}] |")
    return 0


def rows_of(run: Path, checkpoint: str, min_words: int, readings: int) -> list[dict[str, Any]]:
    """A row for each text that was read twice, the mean of its recordings' rows.

    Raises :class:`UserError` if there is none.
    """
    if min(min_words, readings) < 1:
        raise UserError("--min-words and --readings must be 1 or more")
    config = saved_settings(run)
    model, _ = load_model(find_checkpoint(run, checkpoint), torch.device("cpu"))
    exam = twice_read_exam(load_corpus(config.data, config.text, config.mel), min_words=min_words)
    assert exam.other is not None
    rows = examine_often(model, exam, config.freerun, config.mel, None, readings)
    for k, row in enumerate(rows):
        this, that = (
            batch.mel[k, : int(batch.mel_lengths[k])] for batch in (exam.batch, exam.other)
        )
        row["text"] = words_in(row["text"])
        row["mcd_recordings_db"] = mel_cepstral_distortion(that, this)
        row["mcd_floor_db"] = row["mcd_other_db"] - row["mcd_forced_db"]
    return [mean_row(list(same)) for _, same in groupby(rows, key=itemgetter("text"))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--checkpoint", default="last", help="last, best or step-N")
    parser.add_argument("--min-words", type=int, default=4, help="of a text")
    parser.add_argument("--readings", type=int, default=1, help="free runs of each, averaged")
    parser.add_argument("--json", type=Path, help="file for the rows, for tools/compare_seeds.py")
    return parser


if __name__ == "__main__":
    sys.exit(main())
