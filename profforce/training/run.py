"""A training run, from corpus and folder to its last checkpoint or the signal that ends it."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from profforce.config import BestBy, TrainConfig
from profforce.data.corpus import Corpus, load_corpus
from profforce.disk import UNWRITABLE
from profforce.models.checkpoint import SaveError, recover
from profforce.nn.device import choose_device, describe
from profforce.runs import held, refuse_used
from profforce.training.distributed import ALONE, Team, local_device
from profforce.training.gap import Scorer
from profforce.training.logs import LogReporter, Reporter, RunLog
from profforce.training.loop import Loop
from profforce.training.signals import stop_on_signals
from profforce.training.state import TrainState, parameters_in_millions

log = logging.getLogger(__name__)
MakeScorer = Callable[[TrainConfig, Corpus], Scorer | None]


def train(
    cfg: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    report: Reporter | None = None,
    team: Team = ALONE,
    make_scorer: MakeScorer | None = None,
) -> float:
    """Train as ``cfg`` says into ``run_dir``; returns the last free-running score.

    Args:
        cfg: all settings.
        run_dir: gets ``checkpoints/ samples/ tb/ metrics.jsonl``.
        resume: continue from the run's last checkpoint, to the bit.
        report: shows progress; plain log lines when None.
        team: the processes that train together, each of which calls this.
        make_scorer: makes what scores checkpoints; needed for ``trainer.best_by`` other than gap.

    Raises:
        UserError: for anything a person can mend.
        LostError: if the processes no longer go together.
        SaveError: if the run folder takes no more writing.
        SystemExit: 128 + the signal's number, after saving, when a signal ended the run.
    """
    if cfg.trainer.num_threads:
        torch.set_num_threads(cfg.trainer.num_threads)
    torch.use_deterministic_algorithms(cfg.trainer.deterministic)
    device = choose_device(cfg.device if team.size == 1 else local_device(cfg.device))
    corpus = _corpus_of(cfg, team)
    if not cfg.model.num_speakers and len(corpus.speakers) > 1:
        cfg = replace(cfg, model=replace(cfg.model, num_speakers=len(corpus.speakers)))
    state = TrainState(cfg, corpus, device, team)
    with ExitStack() as lock:
        team.from_first("taking the run folder", lambda: _take(run_dir, resume, lock))
        _begin(state, run_dir, resume)
        return _train(state, run_dir, report or LogReporter(), make_scorer)


def _take(run_dir: Path, resume: bool, lock: ExitStack) -> None:
    if not resume:
        run_dir.mkdir(parents=True, exist_ok=True)
    if run_dir.is_dir():
        lock.enter_context(held(run_dir))


def _begin(state: TrainState, run_dir: Path, resume: bool) -> None:
    """Where a run starts from: its last checkpoint, or nothing."""
    team = state.team
    if resume:
        state.load(team.from_first("looking for a checkpoint", lambda: recover(run_dir)))
    else:
        team.from_first("looking at the run folder", lambda: refuse_used(run_dir))
        state.begin()
        state.share_weights()


def _train(
    state: TrainState, run_dir: Path, report: Reporter, make_scorer: MakeScorer | None
) -> float:
    cfg, corpus = state.config, state.corpus
    log.info(
        "device %s; model %.2f M parameters; %d + %d utterances; steps %d to %d",
        describe(state.device),
        parameters_in_millions(state.model),
        len(corpus.train),
        len(corpus.valid),
        state.step,
        cfg.trainer.steps,
    )
    if state.step >= cfg.trainer.steps:
        log.info(
            "nothing to do: the run is at step %d and trainer.steps=%d; to go on: "
            "profforce train --resume %s trainer.steps=%d",
            *(state.step, cfg.trainer.steps, run_dir, 2 * state.step),
        )
        return float("nan") if state.score is None else state.score
    with stop_on_signals() as flag, _records(run_dir, state) as run_log:
        scorer = None if make_scorer is None else make_scorer(cfg, corpus)
        if scorer is None and cfg.trainer.best_by != BestBy.gap:
            raise ValueError(f"trainer.best_by={cfg.trainer.best_by} needs make_scorer")
        loop = Loop(state, run_dir, run_log, report, scorer)
        with loop.room.told():
            loop.run(flag)
    if flag.signal is not None:
        name = "Ctrl-C" if flag.signal == signal.SIGINT else signal.Signals(flag.signal).name
        log.info(
            "stopped by %s at step %d of %d; continue: profforce train --resume %s",
            *(name, state.step, cfg.trainer.steps, run_dir),
        )
        raise SystemExit(128 + flag.signal)
    return float("nan") if state.score is None else state.score


def _corpus_of(cfg: TrainConfig, team: Team) -> Corpus:
    """The corpus; features are made by one process, before the others look for them."""
    found: list[Corpus] = []

    def load() -> None:
        found.append(load_corpus(cfg.data, cfg.text, cfg.mel))

    team.from_first("reading the corpus", load)
    if not found:
        load()
    corpus = found[0]
    size = f"{len(corpus.train)} + {len(corpus.valid)} utterances"
    team.require_equal(
        "the corpus",
        f"{size} ({corpus.fingerprint()[:8]})",
        remedy="give all machines the same files, or a shared data.root",
    )
    return corpus


@contextmanager
def _records(run_dir: Path, state: TrainState) -> Iterator[RunLog | None]:
    """The run's records, kept by one process; a full disk under them is one line."""
    if not state.team.is_first:
        yield None
        return
    try:
        run_log = RunLog(run_dir, state.step)
        try:
            yield run_log
        finally:
            run_log.close()
    except OSError as err:
        if err.errno not in UNWRITABLE:
            raise
        raise SaveError(
            "the run folder takes no more writing",
            where=run_dir,
            got=err.strerror,
            remedy="make room, then go on from its last checkpoint with --resume",
        ) from err
