"""The training loop: it schedules; the step itself is :mod:`profforce.training.step`."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from profforce.config import MethodName
from profforce.data.batch import Batch
from profforce.nn.noise import PrenetNoise
from profforce.training.faults import (
    MOST_IN_A_ROW,
    DivergedError,
    all_finite,
    gradient_norm,
    tell_skipped,
)
from profforce.training.gap import Reading, Scorer, fixed_sentences, measure_gap
from profforce.training.logs import Pace, Report, Reporter, RunLog
from profforce.training.memory import OutOfRoomError, Room, peak_memory_mib
from profforce.training.optim import clip_gradients
from profforce.training.plan import Part, build_sampler, own_batches, plan_step
from profforce.training.pool import PoolBatch
from profforce.training.seeds import derived_seed, generator
from profforce.training.show import show_reading
from profforce.training.signals import StopFlag
from profforce.training.state import TrainState, detached
from profforce.training.step import (
    FreeTexts,
    StepLoss,
    differentiate,
    professor_forcing_step,
)

log = logging.getLogger(__name__)
FORCED = ("gan/", "free/", "imitation/")


class Loop:
    """Steps, and what happens between them."""

    def __init__(
        self,
        state: TrainState,
        run_dir: Path,
        run_log: RunLog | None,
        report: Reporter,
        scorer: Scorer | None = None,
    ) -> None:
        """``run_log`` is None in all processes but the first; the gap is the score if no scorer."""
        self.scorer = scorer
        self.state, self.run_dir, self.run_log, self.report = state, run_dir, run_log, report
        self.team = state.team
        self.config = state.config
        self.device = state.device
        self.fixed = fixed_sentences(state.corpus.valid, self.config.trainer.num_eval_sentences).to(
            self.device
        )
        self.seconds: dict[str, float] = {}
        self.forced: dict[str, torch.Tensor] = {}
        """The last such scalars since the last log line: they need not come with every step."""
        self.sampler = build_sampler(state.corpus.train, self.config, self.team.size)
        self.room = Room(state, run_dir)

    def run(self, flag: StopFlag) -> None:
        """Train until the last step, the time limit or a signal; the end is always saved."""
        trainer, state = self.config.trainer, self.state
        pace = Pace(state.step, trainer.steps)
        batches = own_batches(
            state.corpus, self.sampler, state.batches_drawn, self.config, self.team
        )
        limit_s = float("inf") if trainer.max_minutes is None else 60 * trainer.max_minutes
        saved = state.step if state.step else -1
        while state.step < trainer.steps and flag.none_stops(self.team, pace.elapsed_s >= limit_s):
            scalars = self._optimizer_step(batches)
            step = state.step
            last = step == trainer.steps
            logged = step % trainer.log_every == 0
            self._stop_if_diverged(step, scalars)
            if logged or last:
                self._log(step, scalars, pace)
            if step % trainer.evaluate_every == 0 or last:
                self._evaluate(step)
            if step % trainer.checkpoint_every == 0 or last:
                self._save()
                saved = step
        if saved != state.step:
            self._save()
        log.info("step %d saved in %s", state.step, self.run_dir)

    def _save(self) -> None:
        """Score the weights, if they are not scored by the gap, and write a checkpoint."""
        state, scorer = self.state, self.scorer
        if scorer is not None:
            state.score = self.team.from_first(
                f"scoring step {state.step}", lambda: self._scored(scorer)
            )
        state.save(self.run_dir)

    def _scored(self, scorer: Scorer) -> float:
        began = time.perf_counter()
        score = scorer(self.state.sampling_model)
        assert self.run_log is not None
        seconds = time.perf_counter() - began
        values = {"score/best_by": score.value, **score.figures, "time/score_s": seconds}
        self.run_log.write(self.state.step, values)
        return score.value

    def _stop_if_diverged(self, step: int, scalars: dict[str, torch.Tensor]) -> None:
        """End a run that skips every step, with its state saved and its count begun anew."""
        if self.state.skips.in_a_row < MOST_IN_A_ROW:
            return
        self.state.skips.in_a_row = 0
        self.state.save(self.run_dir)
        raise DivergedError(
            f"training diverged: the gradient is not finite, {MOST_IN_A_ROW} steps in a row",
            where=f"step {step} of {self.run_dir}",
            got=f"loss {float(scalars['loss/total']):g}",
            remedy="the state is saved: look at the batches named in the log, then go on with "
            "--resume and a lower trainer.lr or trainer.clip_norm",
        )

    def _optimizer_step(self, batches: Iterator[Batch]) -> dict[str, torch.Tensor]:
        state, trainer = self.state, self.config.trainer
        began = time.perf_counter()
        self._refresh_pool()
        state.model.train()
        before = state.batches_drawn, state.pool.draws
        work = [(part, next(batches)) for part in plan_step(state, self.sampler)]
        try:
            parts = self.room.gradients(work, self._gradients)
        except OutOfRoomError:
            state.batches_drawn, state.pool.draws = before  # the step is still to be done
            if self.team.size == 1:
                self._save()
            raise
        ids = [name for _, batch in work for name in batch.ids]
        scalars = self._summed(parts)
        self.team.sum_gradients((state.model, state.judges))
        state.scale.take_out((state.optimizer, state.judge_optimizer))
        loss, norm = scalars["loss/total"], clip_gradients(state.model, trainer.clip_norm)
        scalars["loss/gradient_norm"] = norm
        taken = all_finite((loss, norm, gradient_norm(state.judges).to(norm.device)))
        overflowed = state.scale.pass_on(taken=taken, loss=loss)
        if taken:
            self.forced |= {name: x for name, x in scalars.items() if name.startswith(FORCED)}
            state.learn(scalars.get("gan/accuracy"))
        elif not overflowed:
            everyone = self.team.gathered("what was skipped", ids)
            tell_skipped(state.step + 1, loss, norm, [name for ids in everyone for name in ids])
        state.skips.count(taken=taken or overflowed)
        state.pass_on()
        self._spent("time/step_s", began)
        return scalars

    def _summed(self, parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Scalars of the whole step, of which each part has its share."""
        names = sorted({name for part in parts for name in part})
        zero = parts[0]["loss/total"].new_zeros(())  # of half a batch without a free run
        rows = [torch.stack([p.get(name, zero).float() for name in names]) for p in parts]
        own = torch.stack(rows).sum(0)
        return dict(zip(names, self.team.summed(own, "the losses"), strict=True))

    def _gradients(self, batch: Batch, part: Part) -> dict[str, torch.Tensor]:
        torch.manual_seed(derived_seed(self.config.seed, "step", part.number))
        return differentiate(self._losses(batch, part), self.state.scale)

    def _losses(self, batch: Batch, part: Part) -> Iterator[StepLoss]:
        state, config, number = self.state, self.config, part.number
        batch = batch.to(self.device)
        pool: PoolBatch | FreeTexts | None = None
        if not part.free:  # half a batch of one free run
            pool = None
        elif state.forces and config.method.name == MethodName.through_time:
            pool = state.texts_to_speak(part.free, number)
        elif state.forces:
            pool = state.pool.batch(part.free, self.device)
        return professor_forcing_step(
            state.model,
            state.discriminator,
            state.control,
            batch,
            pool,
            noise=PrenetNoise(derived_seed(config.seed, "noise", number), batch.indices),
            weights=state.gates.weights(state.step),
            judge_learns=state.gates.discriminator_open,
            crop_generator=generator(config.seed, "crop", number),
            config=config,
            shares=part.shares,
        )

    def _refresh_pool(self) -> None:
        state, method = self.state, self.config.method
        if method.name != MethodName.professor_forcing:
            return
        began = time.perf_counter()
        if state.pool.advance(state.mirror, state.step, method.start_step, self.device):
            self._spent("time/pool_refresh_s", began)

    def _log(self, step: int, scalars: dict[str, torch.Tensor], pace: Pace) -> None:
        state = self.state
        values = detached(self.forced | scalars)
        epoch = state.batches_drawn // len(self.sampler)
        values["loss/learning_rate"] = float(state.schedule.get_last_lr()[0])
        values["loss/skipped"] = state.skips.total
        if halved := self.room.halved_by_all():
            values["mem/halved_steps"] = halved
        if state.scale.is_used:
            values |= {"loss/scale": state.scale.value, "loss/overflows": state.scale.overflows}
        values["time/epoch"] = epoch
        values |= self.seconds | {"time/steps_a_second": pace.rate(step)}
        if state.pool.samples.mels:
            values |= state.pool.summary(step)
        if "gan/accuracy" in values:
            values["gan/accuracy_average"] = state.gates.accuracy
            values["gan/weight"] = state.gates.weights(step).free
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        else:
            peak = peak_memory_mib()
        values["mem/peak_mib"] = self.team.largest(peak, "their memory")
        self.seconds, self.forced = {}, {}
        if self.run_log is None:
            return
        self.run_log.write(step, values)
        note = "" if state.score is None else f"free-running score {state.score:.3f}"
        self.report(
            Report(
                step=step,
                steps=self.config.trainer.steps,
                epoch=epoch,
                loss=values["loss/total"],
                steps_a_second=pace.rate(step),
                eta_s=pace.eta_s(step),
                note=note,
            )
        )

    def _evaluate(self, step: int) -> None:
        """Read the gap, in one process for all."""
        score = self.team.from_first(f"evaluating step {step}", lambda: self._reading(step))
        if self.scorer is None:
            self.state.score = score

    def _reading(self, step: int) -> float:
        began = time.perf_counter()
        state, run_log = self.state, self.run_log
        assert run_log is not None
        reading: Reading = measure_gap(state.sampling_model, self.fixed, self.config.freerun)
        factor = self.config.model.reduction_factor
        if math.isfinite(reading.score):
            show_reading(reading, step, self.run_dir, run_log.board, state.corpus, factor)
        seconds = time.perf_counter() - began
        run_log.write(step, {**reading.scalars, "time/evaluate_s": seconds})
        log.info(
            "step %d: DTW mel distance free-running %.3f, teacher-forced %.3f; %.0f %% stopped",
            step,
            reading.scalars["gap/free_running_dtw"],
            reading.scalars["gap/teacher_forced_dtw"],
            100 * reading.scalars["gap/stopped_fraction"],
        )
        return reading.score

    def _spent(self, name: str, began: float) -> None:
        self.seconds[name] = time.perf_counter() - began
