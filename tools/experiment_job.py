"""One job of tools/experiment.py, in a process of its own: train for its time, then examine.

python tools/experiment_job.py JOB.json [--again]

With --again it is only examined once more, by an exam that has changed.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from profforce.bridge import saved_settings
from profforce.config import DataKind, TrainConfig
from profforce.data.corpus import Corpus, load_corpus
from profforce.errors import UserError
from profforce.evaluation.exam import Exam, corpus_exams, seen_exam, synthetic_exams
from profforce.evaluation.letters import letter_templates
from profforce.evaluation.measure import Row, examine_often
from profforce.models.checkpoint import find_checkpoint, load_meta, load_model, load_train_state
from profforce.training.logs import Report
from profforce.training.optim import restore_optimizer
from profforce.training.run import train
from profforce.training.state import TrainState

CPU = torch.device("cpu")
FREE_SECTIONS = ("method", "freerun", "discriminator", "trainer")
"""What a recipe may change; all else is the start's."""
NEVER = 10**9
"""Steps: evaluation is the harness's own, and a recipe ends by its time. So far from the end the
learning rate is constant, lest the faster recipe have the lower one."""
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True)
class Job:
    """A recipe with a seed."""

    recipe: str
    overrides: tuple[str, ...]
    seed: int
    start: str
    """Run folder and checkpoint, RUN/checkpoints/step-N."""
    run_dir: str
    result: str
    seconds: float
    """Of training; 0 examines the start itself."""
    clock: str = "cpu"
    num_texts: int = 60
    joined: int = 2
    min_words: int = 1
    readings: int = 1


class Budget:
    """Ends a training after its time by the signal that a person would send."""

    def __init__(self, seconds: float, clock: str) -> None:
        self.now = CLOCKS[clock]
        self.seconds, self.began = seconds, self.now()
        self.used, self.steps, self.spent = 0.0, 0, False

    def __call__(self, report: Report) -> None:
        """Take in a logged step."""
        self.used, self.steps = self.now() - self.began, report.step
        if self.used >= self.seconds and not self.spent:
            self.spent = True
            signal.raise_signal(signal.SIGTERM)


def main(argv: Sequence[str] | None = None) -> int:
    """Do the job of a file; 0 when its result is written, 1 for a mistake of the user."""
    words = sys.argv[1:] if argv is None else argv
    job = Job(**json.loads(Path(words[0]).read_text(encoding="utf-8")))
    torch.set_num_threads(1)
    try:
        job = replace(job, overrides=tuple(job.overrides))
        write_whole(Path(job.result), run(job, again="--again" in words))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(job: Job, again: bool = False) -> dict[str, Any]:
    """Train, unless it is done and examined ``again``; examine, and say what it took."""
    config = settings_for(job)
    corpus = load_corpus(config.data, config.text, config.mel)
    start = Path(job.start)
    steps, used, trained = 0, 0.0, start
    run_dir = Path(job.run_dir)
    if job.seconds > 0 and again:
        done = json.loads(Path(job.result).read_text(encoding="utf-8"))
        steps, used, trained = done["steps"], done["used_s"], find_checkpoint(run_dir, "last")
    elif job.seconds > 0:
        first = begin(config, corpus, start, run_dir)
        budget = train_for(job, config, run_dir)
        steps, used = budget.steps - first, budget.used
        trained = find_checkpoint(run_dir, "last")
    model, _ = load_model(trained, CPU)
    rows: list[Row] = []
    letters = config.data.kind is DataKind.synthetic
    templates = letter_templates(config.mel) if letters else None
    for exam in exams_for(job, config, corpus):
        rows += examine_often(model, exam, config.freerun, config.mel, templates, job.readings)
    return {**asdict(job), "steps": steps, "used_s": round(used, 1), "rows": rows}


def settings_for(job: Job) -> TrainConfig:
    """The start's settings with the recipe's, for training without an end."""
    start = Path(job.start)
    first = int(load_meta(start)["step"])
    fixed = {
        "seed": job.seed,
        "device": "cpu",
        "trainer.steps": NEVER,
        "trainer.evaluate_every": NEVER,
        "trainer.checkpoint_every": NEVER,
        "trainer.log_every": 5,
        "trainer.num_threads": 1,
        "trainer.max_minutes": None,
    }
    words = [f"method.start_step={first}", *job.overrides]
    for word in job.overrides:
        key = word.partition("=")[0]
        if key.partition(".")[0] not in FREE_SECTIONS or key in fixed:
            raise UserError(
                "a recipe cannot change this",
                where=f"recipe {job.recipe}, override '{word}'",
                expected=f"a setting of {', '.join(FREE_SECTIONS)}, but not how long or when",
            )
    try:
        raw = OmegaConf.structured(saved_settings(start.parent.parent))
        merged = OmegaConf.merge(raw, OmegaConf.from_dotlist(words))
        for key, value in fixed.items():
            OmegaConf.update(merged, key, value)
        config = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot set what it says: {reason}", where=f"recipe {job.recipe}"
        ) from error
    assert isinstance(config, TrainConfig)
    return config


def begin(config: TrainConfig, corpus: Corpus, start: Path, run_dir: Path) -> int:
    """Make ``run_dir`` a run that stands where ``start`` does; returns its step.

    Model, average and optimizer are the start's. Discriminator, gates and pool are new: they
    belong to the recipe and its seed.
    """
    state = TrainState(config, corpus, CPU)
    saved = load_train_state(start, CPU)
    try:
        state.model.load_state_dict(saved["model"])
        if state.average is not None and "average" in saved:
            state.average.load_state_dict(saved["average"])
        state.schedule.load_state_dict(saved["schedule"])
        restore_optimizer(state.optimizer, saved["optimizer"], state.schedule)
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError("the start does not fit the recipe", where=start, got=reason) from error
    state.step, state.batches_drawn = int(saved["step"]), int(saved["batches_drawn"])
    state.save(run_dir)
    (run_dir / ".hydra").mkdir(exist_ok=True)
    OmegaConf.save(OmegaConf.structured(config), run_dir / ".hydra" / "config.yaml")
    return state.step


def train_for(job: Job, config: TrainConfig, run_dir: Path) -> Budget:
    """Train until the time is spent; what loads the corpus and the state counts for all alike."""
    budget = Budget(job.seconds, job.clock)
    try:
        train(config, run_dir, resume=True, report=budget)
    except SystemExit:
        if not budget.spent:  # somebody else's signal: the job is not done
            raise
    return budget


def exams_for(job: Job, config: TrainConfig, corpus: Corpus) -> list[Exam]:
    """The same texts for every recipe and seed."""
    letters = config.data.kind is DataKind.synthetic
    num, least = job.num_texts, job.min_words
    seen = seen_exam(corpus, config.mel, num=num, letters=letters, min_words=least)
    if not letters:
        exams = corpus_exams(corpus, num=num, joined=job.joined, min_words=least)
        return [*exams, seen]
    unseen = synthetic_exams(
        corpus.tokenizer,
        config.mel,
        trained=config.data.num_utterances,
        variation=config.data.variation,
        num=num,
        joined=job.joined,
    )
    return [*unseen, seen]


def write_whole(path: Path, content: object) -> None:
    """JSON, there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
