"""Suite ``epoch``: what professor forcing costs an epoch here, and which N and G to take.

Measured, with lengths spread from half to one and a half of the means, or those of a corpus if
``data=`` or ``data.root=`` names one:

- ``teacher_forcing``, ``professor_forcing``: an optimizer step on batches as a run draws them, of
  which every ``method.interval``-th is of the second kind;
- ``generate_G``: refreshing a pool of G utterances, each as long as the recording of its text, for
  G = ``freerun.pool_size`` and for what 1, 2, 4, ... 64 such steps use.

From these follow, for a grid of N (``freerun.every``) and G (``freerun.pool_size``), the time of a
step with generating spread over the steps, how often each sample is used and how stale it gets; and
the pair with the freshest samples that keeps to ``budget`` and ``max_uses``.

Shapes: B batch, T mel frames and S symbols on average.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import cycle
from typing import Any

import torch

from profforce.bench.noise import noise_corpus, spread_lengths
from profforce.bench.refresh import Choice, Times, choice, grid, recommend
from profforce.bench.report import Derived, Row, number, rounded
from profforce.bench.steps import Free, StepKind, TrainingSteps, training_of
from profforce.bench.suite import Case, Form, Suite
from profforce.bench.train import DEMO_FRAMES, DEMO_SYMBOLS, parse_shape
from profforce.config import BenchConfig, TrainConfig, TrainingBenchConfig
from profforce.data.corpus import Corpus, load_corpus
from profforce.data.sampler import BucketSampler
from profforce.errors import UserError

STEPS_LASTING = (1, 2, 4, 8, 16, 32, 64)
"""How many steps that use them the pools last whose making is timed."""
NOISE_UTTERANCES = 512
KINDS = {"teacher_forcing": StepKind(Free.none), "professor_forcing": StepKind(Free.pool)}
GENERATE = "generate_"


class EpochSuite:
    """One shape ``BxTxS`` or a corpus, and the forms above."""

    def cases(self, config: BenchConfig) -> list[Case]:
        """The one case.

        Raises:
            UserError: for several shapes, a shape beside a corpus, or a corpus that is not there.
        """
        settings = training_of(config)
        training, shapes = settings.training, config.shapes
        if settings.from_corpus and shapes:
            raise UserError(
                "a corpus has lengths of its own", where="shapes", remedy="leave out shapes or data"
            )
        if shapes and len(shapes) > 1:
            raise UserError("suite epoch takes one shape", where="shapes", got=str(len(shapes)))
        size = training.trainer.batch_size
        if settings.from_corpus:
            return [{"B": size, **_mean_lengths(_load(training))}]
        return [parse_shape(shapes[0] if shapes else f"{size}x{DEMO_FRAMES}x{DEMO_SYMBOLS}")]

    def warmup_case(self, case: Case) -> Case:
        """Two short utterances."""
        return {"B": min(case["B"], 2), "T": min(case["T"], 16), "S": 2}

    def groups(self, config: BenchConfig, device: torch.device) -> dict[str, list[str]]:
        """Each way to step by itself, and all pools."""
        pools = [f"{GENERATE}{size}" for size in pool_sizes(_with_batch(config))]
        return {**{name: [name] for name in KINDS}, "generate": pools}

    def forms(
        self, names: list[str], case: Case, config: BenchConfig, device: torch.device
    ) -> dict[str, Form]:
        """Steps over the batches of an epoch in turn, the same ones for each way to step."""
        settings = training_of(config)
        training = _with_batch(config, case["B"])
        steps = TrainingSteps(training, _corpus_of(case, settings), device)
        made: dict[str, Form] = {}
        for name in names:
            if name in KINDS:
                made[name] = Form(_stepping(steps, KINDS[name]))
            else:
                made[name] = Form(_generating(steps, int(name.removeprefix(GENERATE))))
        return made

    def derive(self, rows: Sequence[Row], config: BenchConfig) -> Derived:
        """The grid of N and G, and the pair to take."""
        training = _with_batch(config)
        times = times_of(rows, training)
        best = recommend(times, config.budget, config.max_uses)
        pairs = grid(times, best)
        return Derived(
            title="Time of a step against teacher forcing, and uses of a sample",
            columns=("N", "steps stale (most)", *(f"G={size}" for size in times.generate)),
            lines=_lines(pairs),
            data={
                "grid": [_record(pair) for pair in pairs],
                "recommended": _recommended(best),
                "limits": {
                    "budget": config.budget,
                    "max_uses": config.max_uses,
                    "without_generating": times.without_generating / times.teacher_forcing,
                },
            },
            advice=_advice(best, config, choice_now(times, training)),
        )


SUITE: Suite = EpochSuite()


def pool_sizes(training: TrainConfig) -> list[int]:
    """G to measure: that of the settings, and what some numbers of steps use."""
    used = used_a_step(training)
    own = training.freerun.pool_size
    return sorted({*(used * steps for steps in STEPS_LASTING), *([own] if own >= used else [])})


def used_a_step(training: TrainConfig) -> int:
    """Utterances of the pool that an optimizer step uses."""
    return training.pool_batch_size * training.trainer.accumulate


def times_of(rows: Sequence[Row], training: TrainConfig) -> Times:
    """The medians by their meaning."""
    found = {row.form: row.ms_median for row in rows}
    return Times(
        teacher_forcing=found["teacher_forcing"],
        professor_forcing=found["professor_forcing"],
        generate={
            int(name.removeprefix(GENERATE)): value
            for name, value in found.items()
            if name.startswith(GENERATE)
        },
        used_a_step=used_a_step(training),
        interval=training.method.interval,
        ahead=training.freerun.ahead,
    )


def choice_now(times: Times, training: TrainConfig) -> Choice | None:
    """What the settings as they are cost; None if their G was not measured."""
    freerun = training.freerun
    if freerun.pool_size not in times.generate:
        return None
    return choice(times, freerun.every, freerun.pool_size)


def _with_batch(config: BenchConfig, size: int | None = None) -> TrainConfig:
    """The training with batches of ``size``, or as large as the shape says if there is one."""
    training = training_of(config).training
    if size is None and config.shapes:
        size = parse_shape(config.shapes[0])["B"]
    trainer = replace(training.trainer, batch_size=size or training.trainer.batch_size)
    return replace(training, trainer=trainer)


def _corpus_of(case: Case, settings: TrainingBenchConfig) -> Corpus:
    """The corpus that was asked for; noise without one, and for the short case of a warm-up."""
    if settings.from_corpus:
        corpus = _load(settings.training)
        if _mean_lengths(corpus).items() <= case.items():
            return corpus
    lengths = spread_lengths(case["T"], case["S"], NOISE_UTTERANCES)
    return noise_corpus(settings.training, lengths)


def _load(training: TrainConfig) -> Corpus:
    return load_corpus(training.data, training.text, training.mel)


def _mean_lengths(corpus: Corpus) -> Case:
    train = corpus.train
    return {"T": round(train.num_frames.mean()), "S": round(train.num_symbols.mean())}


def _stepping(steps: TrainingSteps, kind: StepKind) -> Callable[[], None]:
    """Each call takes the next batch of the first epoch, which starts over at its end."""
    train, config = steps.corpus.train, steps.config
    budget = config.trainer.max_frames
    sampler = BucketSampler(
        train.num_frames, config.trainer.batch_size, config.seed, max_frames=budget
    )
    positions = cycle(sampler.batches(0))
    size = steps.pool_batch_size
    pool = steps.generate(4 * size) if kind.free is Free.pool else None
    first = pool.draw(size, steps.device) if pool else None
    steps.take(kind, steps.batch([0]), first)  # the optimizers' states are made here

    def run() -> None:
        made = pool.draw(size, steps.device) if pool else None
        steps.take(kind, steps.batch(next(positions)), made)

    return run


def _generating(steps: TrainingSteps, pool_size: int) -> Callable[[], object]:
    return lambda: steps.generate(pool_size)


def _lines(pairs: Sequence[Choice]) -> list[list[str]]:
    """A line an N, a column a G."""
    lines: dict[int, list[str]] = {}
    for pair in pairs:
        stale = f"{pair.mean_staleness:g} ({pair.max_staleness})"
        line = lines.setdefault(pair.every, [str(pair.every), stale])
        line.append(f"{pair.ratio:.2f} / {number(pair.uses)}")
    return list(lines.values())


def _record(pair: Choice) -> dict[str, Any]:
    measures = {name: rounded(value) for name, value in asdict(pair).items()}
    return {
        **measures,
        **{name: getattr(pair, name) for name in ("every", "pool_size", "max_staleness")},
    }


def _recommended(best: Choice) -> dict[str, Any]:
    return {**_record(best), "overrides": overrides(best)}


def overrides(best: Choice) -> str:
    """Settings of ``profforce train``."""
    return f"freerun.every={best.every} freerun.pool_size={best.pool_size}"


def _advice(best: Choice, config: BenchConfig, now: Choice | None) -> str:
    lines = [f"recommended: {overrides(best)}", f"  {_told(best)}"]
    if best.uses > config.max_uses:
        lines.append(
            f"  no G here keeps uses within {config.max_uses:g} and generating within "
            f"{config.budget:.0%}; this comes nearest"
        )
    if now is not None and now != best:
        lines += [f"as set:      {overrides(now)}", f"  {_told(now)}"]
    return "\n".join(lines)


def _told(pair: Choice) -> str:
    return (
        f"{pair.ratio:.2f} times teacher forcing, generating {pair.generating:.1%} of it; "
        f"each sample used {number(pair.uses)}x, {pair.mean_staleness:g} steps stale on "
        f"average, {pair.max_staleness} at most"
    )
