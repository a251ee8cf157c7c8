"""Kill a training again and again, resume it each time, and compare it with one left alone.

python tools/crash_test.py --kills 50 [--processes 2] [--seed 0] [--steps 24]

A tiny professor-forcing training, whose pools are begun ahead, runs in processes of its own and
gets SIGKILL: half of the times at a random moment, else while a checkpoint is being written. Of
several processes all are killed, or one, whereupon the others have to end by themselves. When
it ends in spite of that, the next round starts anew, until all kills are done. Every logged value
(losses, gradient norms, pool, scores) and the final weights must be those of the uninterrupted
run, to the bit. Prints one JSON line; exit 1 when something differs.
"""

import argparse
import json
import logging
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from profforce.config import (
    DataConfig,
    DataKind,
    DiscriminatorConfig,
    FreerunConfig,
    MelConfig,
    MethodConfig,
    MethodName,
    ModelConfig,
    TextConfig,
    TrainConfig,
    TrainerConfig,
)
from profforce.data.prepare import prepare
from profforce.errors import UserError
from profforce.models.checkpoint import DIGESTS, WEIGHTS, find_checkpoint, load_meta
from profforce.training.distributed import joined
from profforce.training.run import train

UNEQUAL = ("time/", "mem/")
"""Scalars that no two runs share."""
POLL_S = 0.0005
PATIENCE_S = 1200.0


@dataclass
class Outcome:
    """What was done and what came of it."""

    kills: int = 0
    while_writing: int = 0
    """Of those, with a checkpoint half-written."""
    of_one: int = 0
    """Of those, of one among several processes."""
    lost_all: int = 0
    """Of those, before the first checkpoint: started again instead of resumed."""
    processes: int = 1
    rounds: int = 0
    steps: int = 0
    differences: list[str] = field(default_factory=list)


def settings_of(corpus: Path, steps: int) -> TrainConfig:
    """A training of milliseconds a step in which everything that has a state takes part."""
    return TrainConfig(
        device="cpu",
        mel=MelConfig(sample_rate=8000, n_fft=512, win_length=512, fmax_hz=4000.0, num_mels=20),
        data=DataConfig(
            kind=DataKind.synthetic, root=str(corpus), num_utterances=24, valid_fraction=0.2
        ),
        model=ModelConfig(
            width=16,
            num_heads=2,
            encoder_layers=1,
            decoder_layers=1,
            feedforward_width=32,
            encoder_conv_layers=1,
            prenet_width=8,
            postnet_layers=2,
            postnet_width=8,
            reduction_factor=4,
            guided_layers=1,
            guided_heads=1,
        ),
        discriminator=DiscriminatorConfig(width=8, crop_steps=8),
        method=MethodConfig(
            name=MethodName.professor_forcing,
            weight=0.05,
            start_step=2,
            interval=2,
            ramp_steps=4,
            gate_low=0.0,
        ),
        freerun=FreerunConfig(every=4, ahead=2, pool_size=6, batch_size=4),
        trainer=TrainerConfig(
            steps=steps,
            batch_size=5,
            warmup_steps=4,
            log_every=1,
            evaluate_every=6,
            checkpoint_every=2,
            num_eval_sentences=2,
            num_threads=1,
        ),
    )


@dataclass(frozen=True)
class Life:
    """The processes that train a run together, from its last checkpoint to the end or the kill."""

    processes: list[BaseProcess]

    def join(self, patience_s: float | None = None) -> None:
        """Wait for the first process to end."""
        self.processes[0].join(patience_s)

    def is_alive(self) -> bool:
        """Whether none has ended."""
        return all(process.is_alive() for process in self.processes)

    def kill(self, which: int | None) -> None:
        """Kill all or one; the others must then end without help."""
        for process in self.processes if which is None else [self.processes[which]]:
            process.kill()
        for process in self.processes:
            process.join(PATIENCE_S)
            if process.exitcode is None:
                self.kill(None)
                raise RuntimeError("a process went on though another one of its run was killed")

    @property
    def exitcodes(self) -> list[int | None]:
        """Of all; negative for a signal."""
        return [process.exitcode for process in self.processes]


def live(config: TrainConfig, run: Path, resume: bool, place: dict[str, str]) -> None:
    """One process of a life; ``place`` says to torch.distributed which of how many it is."""
    rank = int(place["RANK"])
    name = f"{run.name}.log" if rank == 0 else f"{run.name}.{rank}.log"
    logging.basicConfig(
        filename=run.with_name(name), level=logging.INFO if rank == 0 else logging.ERROR
    )
    os.environ.update(place)
    try:
        if place["WORLD_SIZE"] == "1":
            train(config, run, resume=resume)
            return
        with joined(config.device, PATIENCE_S / 120) as team:
            train(config, run, resume=resume, team=team)
    except UserError as err:
        logging.exception("refused")
        raise SystemExit(1) from err


def born(config: TrainConfig, run: Path, processes: int = 1) -> Life:
    """Start a life; forked from a server that has PyTorch loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["profforce.training.run"])
    resume = any((run / "checkpoints").glob("step-*"))
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = []
    for rank in range(processes):
        place = {**where, "RANK": str(rank), "WORLD_SIZE": str(processes)}
        given = (config, run, resume, place)
        started.append(context.Process(target=live, args=given, daemon=True))
        started[-1].start()
    return Life(started)


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def half_written(run: Path) -> bool:
    """Whether a checkpoint is being written now, or was when its writer died."""
    return any((run / "checkpoints").glob(".step-*.partial"))


def wait_for_writing(process: Life, run: Path, times: int) -> None:
    """Return in the midst of the ``times``-th checkpoint that is written from now on."""
    seen, before = 0, half_written(run)
    while process.is_alive():
        now = half_written(run)
        seen += now and not before
        if seen == times:
            return
        before = now
        time.sleep(POLL_S)


def finish(life: Life, run: Path) -> None:
    """Wait for a life to end by itself; raises when it failed."""
    for process in life.processes:
        process.join(PATIENCE_S)
    codes = life.exitcodes
    if any(codes):
        life.kill(None)
        log = run.with_name(f"{run.name}.log").read_text(encoding="utf-8")
        raise RuntimeError(f"a run ended with exit codes {codes}:\n{log[-2000:]}")


def strike(life: Life, run: Path, whole_s: float, source: random.Random, which: int | None) -> bool:
    """Kill a life, or one of its processes, at a moment drawn from ``source``.

    Returns false if it had ended before.
    """
    if source.random() < 0.5:
        life.join(source.uniform(0, whole_s / 2))
    else:
        wait_for_writing(life, run, source.randint(1, 4))
        time.sleep(source.uniform(0, 0.01))
    life.kill(which)
    if -9 in life.exitcodes:
        return True
    finish(life, run)
    return False


def one_round(
    config: TrainConfig, run: Path, whole_s: float, most: int, source: random.Random, out: Outcome
) -> None:
    """A run that is killed up to ``most`` times and then left to reach its end."""
    out.rounds += 1
    for _ in range(most):
        which = None
        if out.processes > 1 and source.random() < 0.5:
            which = source.randrange(out.processes)
        if not strike(born(config, run, out.processes), run, whole_s, source, which):
            return
        out.kills += 1
        out.of_one += which is not None
        out.while_writing += half_written(run)
        out.lost_all += not any((run / "checkpoints").glob("step-*"))
    finish(born(config, run, out.processes), run)


def logged(run: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl`` without what no two runs share; JSON keeps every bit."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{k: v for k, v in row.items() if not k.startswith(UNEQUAL)} for row in rows]


def differences(whole: Path, parts: Path) -> list[str]:
    """What two finished runs do not share, in words; nothing if they are equal to the bit."""
    first, second = logged(whole), logged(parts)
    found = [] if len(first) == len(second) else [f"{len(first)} != {len(second)} rows"]
    for a, b in zip(first, second, strict=False):
        names = [n for n in sorted({*a, *b}) if a.get(n) != b.get(n)]
        found += [f"step {a['step']}: {n} {a.get(n)!r} != {b.get(n)!r}" for n in names]
    last = [load_meta(find_checkpoint(run, "last")) for run in (whole, parts)]
    if last[0][DIGESTS][WEIGHTS] != last[1][DIGESTS][WEIGHTS]:
        found.append(f"weights of step {last[0]['step']} != weights of step {last[1]['step']}")
    log = parts.with_name(f"{parts.name}.log").read_text(encoding="utf-8")
    found += [line for line in log.splitlines() if "WARNING" in line]
    return [f"{parts.name}: {line}" for line in found]


def crash_test(folder: Path, kills: int, *, seed: int, steps: int, processes: int = 1) -> Outcome:
    """Kill trainings in ``folder`` ``kills`` times in all and compare each with a whole one."""
    config = settings_of(folder / "corpus", steps)
    prepare(config.data, TextConfig(), config.mel)
    whole, again = folder / "whole", folder / "again"
    finish(born(config, whole, processes), whole)
    began = time.perf_counter()  # of a run that finds PyTorch loaded and the features made
    finish(born(config, again, processes), again)
    whole_s = time.perf_counter() - began
    out = Outcome(processes=processes, steps=steps, differences=differences(whole, again))
    source = random.Random(seed)
    while out.kills < kills:
        run = folder / f"round-{out.rounds + 1}"
        one_round(config, run, whole_s, kills - out.kills, source, out)
        out.differences += differences(whole, run)
        told = f"{out.kills} of {kills} kills, {len(out.differences)} differences"
        print(told, file=sys.stderr, flush=True)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every killed run equals the uninterrupted one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        settings = {"seed": args.seed, "steps": args.steps, "processes": args.processes}
        out = crash_test(Path(folder), args.kills, **settings)
        print(json.dumps({**asdict(out), "seconds": round(time.perf_counter() - began, 1)}))
    return 1 if out.differences else 0


if __name__ == "__main__":
    sys.exit(main())
