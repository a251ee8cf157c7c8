"""Examine a run of the synthetic corpus on unseen texts of once, twice and three times the length.

    python tools/long_texts.py --run runs/bed --times 1 2 3 --texts 60 --json out/long.json

Prints a table of shares: utterances that failed free-running, letters that are wrong, and the same
teacher-forced; docs/experiments.md says what they mean.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from profforce.bridge import saved_settings
from profforce.config import DataKind, TrainConfig
from profforce.data.corpus import load_corpus
from profforce.errors import UserError
from profforce.evaluation.exam import Exam, synthetic_exams
from profforce.evaluation.letters import letter_templates
from profforce.evaluation.measure import examine
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.text.tokenizer import Tokenizer

FIGURES = ("failed", "error_rate", "early", "late", "failed_forced", "error_rate_forced")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if examined, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(1)
    try:
        table = table_of(options.run, options.checkpoint, options.times, options.texts)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(table, indent=1), encoding="utf-8")
    print("| times | " + " | ".join(FIGURES) + " |\n|" + "---:|" * (1 + len(FIGURES)))
    for row in table:
        print(f"| {row['times']:g} | " + " | ".join(f"{row[key]:.1%}" for key in FIGURES) + " |")
    return 0


def table_of(run: Path, checkpoint: str, times: Sequence[int], num: int) -> list[dict[str, float]]:
    """A row of :data:`FIGURES` for each length, with ``num`` texts of it."""
    config = saved_settings(run)
    if config.data.kind is not DataKind.synthetic:
        raise UserError(
            "letters can be counted in the synthetic corpus only",
            where=run,
            got=f"data.kind={config.data.kind}",
            remedy="use profforce evaluate",
        )
    if num < 1 or min(times) < 1:
        raise UserError("--texts and --times must be 1 or more")
    model, _ = load_model(find_checkpoint(run, checkpoint), torch.device("cpu"))
    tokenizer = load_corpus(config.data, config.text, config.mel).tokenizer
    templates = letter_templates(config.mel)
    table = []
    for length in times:
        exam = exam_of(config, tokenizer, length, num)
        rows = examine(model, exam, config.freerun, config.mel, templates)
        means = {key: fmean(row[key] for row in rows) for key in FIGURES}
        table.append({"times": float(length), **means})
    return table


def exam_of(config: TrainConfig, tokenizer: Tokenizer, times: int, num: int) -> Exam:
    """``num`` unseen texts, each of ``times`` sentences in one."""
    short, longer = synthetic_exams(
        tokenizer,
        config.mel,
        trained=config.data.num_utterances,
        variation=config.data.variation,
        num=num,
        joined=times,
    )
    return short if times == 1 else longer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--checkpoint", default="last", help="last, best or a step")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--texts", type=int, default=60, help="of each length")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
