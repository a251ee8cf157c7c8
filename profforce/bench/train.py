"""Suite ``train``: one optimizer step of a training, all of it, on utterances of one length.

The model, its loss weights and its batches are those of ``profforce train`` with the same
overrides (``experiment=demo`` unless another is named). Forms:

- ``teacher_forcing``: one pass over the recordings;
- ``professor_forcing``: another over self-made utterances that lie in the pool already, learning as
  the run's method says (from the expert);
- ``adversarial``: the same from a discriminator instead, with its gradient and its own step;
- ``adversarial_shut``: while it is not good enough for its gradient to reach the model;
- ``through_time``: the model speaks within the step, frame by frame, and the discriminator's
  gradient goes back through all of it (``method=through_time``);
- each of these with ``_recompute``: ``trainer.recompute_activations=true``, and through time
  ``method.recompute_steps`` (8 where that is not set);
- ``_segments``: decoder and postnet in segments of ``trainer.segment_steps`` (16 where not set).

Forms that the model cannot do are left out, with the reason. Self-made utterances are as long as
the recordings.

Memory is what a step needs beyond weights and optimizer states: gradients, activations and
workspace.

Shapes: B batch, T mel frames, S symbols.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from profforce.bench.noise import noise_corpus
from profforce.bench.report import Derived, Row, case_names, pivot, rounded
from profforce.bench.steps import Free, StepKind, TrainingSteps, problem_with, training_of
from profforce.bench.suite import Case, Form, Suite
from profforce.config import BenchConfig
from profforce.errors import UserError
from profforce.training.pool import PoolBatch
from profforce.training.step import FreeTexts

log = logging.getLogger(__name__)

DEMO_FRAMES, DEMO_SYMBOLS = 168, 40
"""Mean lengths of the demo corpus."""
LONGER = 4
"""The second default case is this much longer."""
BASELINE = "teacher_forcing"
KINDS = {
    BASELINE: StepKind(Free.none),
    "teacher_forcing_recompute": StepKind(Free.none, recompute=True),
    "teacher_forcing_segments": StepKind(Free.none, segments=True),
    "professor_forcing": StepKind(Free.pool),
    "professor_forcing_recompute": StepKind(Free.pool, recompute=True),
    "professor_forcing_segments": StepKind(Free.pool, segments=True),
    "adversarial": StepKind(Free.pool, judged=True),
    "adversarial_shut": StepKind(Free.pool, judged=True, gate_open=False),
    "through_time": StepKind(Free.within, judged=True),
    "through_time_recompute": StepKind(Free.within, judged=True, recompute=True),
}


class TrainSuite:
    """Shapes ``BxTxS``, and the forms above."""

    def cases(self, config: BenchConfig) -> list[Case]:
        """One case a shape; the demo's lengths and longer ones where none is given."""
        size = training_of(config).training.trainer.batch_size
        default = [f"{size}x{DEMO_FRAMES * k}x{DEMO_SYMBOLS * k}" for k in (1, LONGER)]
        return [parse_shape(text) for text in config.shapes or default]

    def warmup_case(self, case: Case) -> Case:
        """Two short utterances."""
        return {"B": min(case["B"], 2), "T": min(case["T"], 16), "S": 2}

    def groups(self, config: BenchConfig, device: torch.device) -> dict[str, list[str]]:
        """The forms of each method."""
        training = training_of(config).training
        problems = {name: problem_with(kind, training, device) for name, kind in KINDS.items()}
        for name, problem in problems.items():
            if problem is not None:
                log.warning("%s is left out: %s", name, problem)
        groups: dict[str, list[str]] = {}
        for name, problem in problems.items():
            if problem is None:
                groups.setdefault(KINDS[name].free.value, []).append(name)
        return groups

    def forms(
        self, names: list[str], case: Case, config: BenchConfig, device: torch.device
    ) -> dict[str, Form]:
        """Steps of one training, whose optimizers have their states already."""
        training = training_of(config).training
        trainer = replace(training.trainer, batch_size=case["B"])
        training = replace(training, trainer=trainer)
        count = max(case["B"], training.freerun.batch_size or 1)
        corpus = noise_corpus(training, [(case["T"], case["S"])] * count)
        steps = TrainingSteps(training, corpus, device)
        real, size = steps.batch(range(case["B"])), steps.pool_batch_size
        made: dict[Free, PoolBatch | FreeTexts | None] = {
            Free.none: None,
            Free.pool: steps.generate(size).draw(size, device),
            Free.within: steps.state.texts_to_speak(steps.state.choose_texts(0), 0),
        }
        # the optimizers' states are made here
        steps.take(KINDS["adversarial"], steps.batch([0]), made[Free.pool])
        return {
            name: Form(partial(steps.take, KINDS[name], real, made[KINDS[name].free]))
            for name in names
        }

    def derive(self, rows: Sequence[Row], config: BenchConfig) -> Derived:
        """Time and memory of each form as multiples of teacher forcing's."""
        data: list[dict[str, Any]] = []
        for row in rows:
            (base,) = (r for r in rows if (r.case, r.form) == (row.case, BASELINE))
            time = row.ms_median / base.ms_median
            memory = row.peak_mib / base.peak_mib if row.peak_mib and base.peak_mib else None
            record = {"case": row.case, "form": row.form}
            data.append({**record, "time": rounded(time), "memory": rounded(memory)})
        return Derived(
            title="Time and memory as multiples of teacher forcing's",
            columns=("form", *case_names(rows)),
            lines=pivot(rows, [times_and(record["time"], record["memory"]) for record in data]),
            data={"ratios": data},
        )


SUITE: Suite = TrainSuite()


def times_and(time: float | None, memory: float | None) -> str:
    """``"1.81, 1.55"``; memory is left out where it was not measured."""
    return ", ".join(f"{value:.2f}" for value in (time, memory) if value is not None)


def parse_shape(text: str) -> Case:
    """``"8x168x40"`` to ``{"B": 8, "T": 168, "S": 40}``.

    Raises:
        UserError: if that is no shape.
    """
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text):
        raise UserError(
            f"'{text}' is no shape",
            where="shapes",
            expected="BxTxS: batch, mel frames and symbols, such as shapes=[8x168x40]",
        )
    return dict(zip("BTS", map(int, text.split("x")), strict=True))
