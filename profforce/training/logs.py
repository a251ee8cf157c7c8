"""What a run writes down: ``metrics.jsonl``, TensorBoard and one line for people."""

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """Where a run stands, for a progress display."""

    step: int
    steps: int
    epoch: int
    loss: float
    steps_a_second: float
    eta_s: float
    note: str = ""


class Reporter(Protocol):
    """Shows progress to a person."""

    def __call__(self, report: Report, /) -> None:
        """Take in the state of the run; called at every logged step."""


class LogReporter:
    """One plain line at most every ten seconds, for pipes and log files."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, report: Report) -> None:
        """Log the state of the run, if it is time to."""
        now = time.monotonic()
        if now - self.last < 10 and report.step != report.steps:
            return
        self.last = now
        log.info(
            "step %d/%d epoch %d loss %.4f %.2f steps/s ETA %s%s",
            report.step,
            report.steps,
            report.epoch,
            report.loss,
            report.steps_a_second,
            clock(report.eta_s),
            f"; {report.note}" if report.note else "",
        )


class RunLog:
    """The run's own records. Scalars are named ``loss/ gan/ time/ mem/ pool/ gap/``."""

    def __init__(self, run_dir: Path, resume_step: int) -> None:
        self.path = run_dir / "metrics.jsonl"
        self._forget_after(resume_step)
        purge = resume_step + 1 if resume_step else None
        self._told = threading.excepthook
        threading.excepthook = self._tell
        try:
            self.board = SummaryWriter(str(run_dir / "tb"), purge_step=purge, max_queue=100)
        except OSError:
            threading.excepthook = self._told
            raise

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one row; not-a-number is written as null, so that every line is plain JSON."""
        row = {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **row}) + "\n")
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush TensorBoard.

        Raises:
            OSError: if it could not write everything.
        """
        with ExitStack() as at_last:
            at_last.callback(setattr, threading, "excepthook", self._told)
            at_last.callback(self.board.close)
            self.board.flush()

    def _tell(self, found: threading.ExceptHookArgs) -> None:
        """Of a thread that failed: but TensorBoard's hands its error to the next who writes."""
        if not type(found.thread).__module__.startswith("tensorboard."):
            self._told(found)

    def _forget_after(self, step: int) -> None:
        """Drop rows of steps that a killed run wrote after its last checkpoint."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # half a line, written while the run was killed
                continue
            if row["step"] <= step:
                kept.append(line + "\n")
        aside = self.path.with_suffix(".jsonl.partial")
        aside.write_text("".join(kept), encoding="utf-8")
        aside.replace(self.path)


class Pace:
    """Speed since the start of this process, and the time left."""

    def __init__(self, step: int, steps: int) -> None:
        self.first, self.steps, self.began = step, steps, time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def rate(self, step: int) -> float:
        """Steps a second."""
        return (step - self.first) / max(self.elapsed_s, 1e-9)

    def eta_s(self, step: int) -> float:
        """Seconds left."""
        return (self.steps - step) / max(self.rate(step), 1e-9)


def clock(seconds: float) -> str:
    """``h:mm:ss``."""
    whole = int(max(seconds, 0))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
