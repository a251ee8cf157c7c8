"""What the expert of imitation learning makes of planted faults: whether he sees them, and when.

    python tools/expert_check.py --run RUN [--num 100] [--later 0.9] [--json FILE]

The run's teacher-forced speech of its corpus, its tempo changed at random, stands for what a model
says by itself: where each of its frames is in the recording is known. A piece of it is left out,
said twice, mumbled (mixed with another utterance's) or all that follows is. docs/experiments.md,
"what the expert sees".
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from profforce.bridge import saved_settings
from profforce.data.corpus import load_corpus
from profforce.errors import UserError
from profforce.evaluation.exam import corpus_exams, seen_exam
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.training.gap import read_along
from profforce.training.imitation import LATER, next_frames

PIECE = (25, 60)
"""Frames of a planted fault, from and up to."""
AWAY = 15
"""Frames of sound speech that are left on both sides of it."""
NEAR = 6
"""Frames by which the expert may be off and still be right."""
TEMPO = 0.15
"""Deviation of the logarithm of the tempo, which changes eight times an utterance."""
MIXED = 0.8
"""Share of another utterance in what is mumbled."""
SEED = 0

Frames = npt.NDArray[np.int64]
Places = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Said:
    """An utterance as recorded and as the model says it, at another tempo."""

    real: Tensor
    """``[T2, M]``, in deviations."""
    made: Tensor
    """``[T1, M]``."""
    places: Places
    """``[T1]``, where each frame is in the recording."""


FAULTS: dict[str, Callable[[int, int, int], Frames]] = {
    "none": lambda frames, _first, _last: np.arange(frames),
    "left out": lambda frames, first, last: np.r_[:first, last:frames],
    "said twice": lambda frames, first, last: np.r_[:last, first:frames],
    "ended early": lambda _frames, first, _last: np.arange(first),
    "mumbled": lambda frames, _first, _last: np.arange(frames),
}
"""Which frames of ``frames`` are said, the fault being from ``first`` up to ``last``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if measured, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(1)
    try:
        spoken, factor = utterances_of(options.run, options.checkpoint, options.num)
        rows = [checked(fault, spoken, factor, options.later) for fault in FAULTS]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"run": str(options.run), "later": options.later, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"| fault, in each of {len(spoken)} utterances | told rightly | elsewhere wrongly |")
    print("|---|---:|---:|")
    for row in rows:
        rightly = "" if row["rightly"] is None else f"{100 * row['rightly']:.0f} %"
        print(f"| {row['fault']} | {rightly} | {100 * row['elsewhere']:.1f} % |")
    return 0


def utterances_of(run: Path, checkpoint: str, num: int) -> tuple[list[Said], int]:
    """Up to ``num`` utterances of training and as many held-out ones, and the run's R."""
    if num < 1:
        raise UserError("--num must be 1 or more", got=num)
    config = saved_settings(run)
    model, _ = load_model(find_checkpoint(run, checkpoint), torch.device("cpu"))
    corpus = load_corpus(config.data, config.text, config.mel)
    exams = [
        seen_exam(corpus, config.mel, num=num, letters=False),
        corpus_exams(corpus, num=num, joined=1)[0],
    ]
    drawn = np.random.default_rng(SEED)
    found = []
    for exam in exams:
        forced = read_along(model, exam.batch).mel_before
        for k, frames in enumerate(exam.batch.mel_lengths.tolist()):
            real, made = (
                (mel[k, :frames] - model.mel_mean) / model.mel_std
                for mel in (exam.batch.mel, forced)
            )
            knots = drawn.normal(0, TEMPO, 8)
            tempo = np.exp(np.interp(np.arange(2 * frames), np.linspace(0, 2 * frames, 8), knots))
            places = tempo.cumsum()
            places = places[places < frames - 1]
            if len(places) >= PIECE[1] + 2 * AWAY:
                found.append(Said(real, _between(made, places), places))
    if not found:
        least = PIECE[1] + 2 * AWAY
        raise UserError("no utterance is long enough", where=run, expected=f"{least} mel frames")
    return found, model.config.reduction_factor


def _between(mel: Tensor, places: Places) -> Tensor:
    """The frames at ``places``, of what lies on both sides of each."""
    before = torch.from_numpy(np.floor(places).astype(np.int64))
    share = torch.from_numpy(places).to(mel)[:, None] - before[:, None]
    return (1 - share) * mel[before] + share * mel[before + 1]


def checked(fault: str, spoken: Sequence[Said], factor: int, later: float) -> dict[str, Any]:
    """How the expert fares with one fault in each utterance.

    ``rightly``: faults before which the last prefix is told what is due, to within ``NEAR`` frames;
    of what is mumbled, prefixes within it. ``elsewhere``: other prefixes that are told wrongly, not
    counting those as near to the fault.
    """
    drawn = np.random.default_rng(SEED)
    rightly: list[bool] = []
    elsewhere: list[bool] = []
    for k, said in enumerate(spoken):
        frames, length = len(said.places), int(drawn.integers(*PIECE))
        first = int(drawn.integers(AWAY, frames - length - AWAY + 1))
        last = first + length
        rows = FAULTS[fault](frames, first, last)
        made, places = said.made[rows], said.places[rows]
        if fault == "mumbled":
            other = spoken[(k + 1) % len(spoken)].made[:length]
            made = made.clone()
            made[first : first + len(other)] *= 1 - MIXED
            made[first : first + len(other)] += MIXED * other
        told = next_frames(made, said.real, factor, later).numpy()[1:] - 1
        at = np.arange(factor - 1, len(made) - 1, factor)
        wrong = np.abs(told - places[at]) > NEAR
        begins = last if fault == "said twice" else first
        ends = last if fault == "mumbled" else begins
        if fault == "mumbled":
            rightly += (~wrong[(at >= first) & (at < last)]).tolist()
        elif fault != "none":
            rightly.append(not wrong[at < begins][-1])
        away = (at < begins - NEAR) | (at >= ends + NEAR)
        elsewhere += wrong[away | (fault == "none")].tolist()
    return {
        "fault": fault,
        "rightly": float(np.mean(rightly)) if rightly else None,
        "elsewhere": float(np.mean(elsewhere)),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--checkpoint", default="last", help="last, best or step-N")
    parser.add_argument("--num", type=int, default=100, help="utterances of each side")
    parser.add_argument(
        "--later", type=float, default=LATER, help="weight of what follows (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
