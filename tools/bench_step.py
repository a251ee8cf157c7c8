"""Milliseconds a step of training and of free-running at the demo's sizes, as JSON.

    python tools/bench_step.py --repeats 20 --threads 1

Takes in turn, so that whatever else the machine does falls on all alike: a step of teacher forcing,
one of professor forcing with the gate open and with it shut (all with backward pass and optimizers)
and one decoder step of the mirror for 1, 32 and 128 utterances, each with linear and with softmax
self-attention. Needs no corpus: the texts and mels are noise of the demo's mean lengths.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import profforce
from profforce.bridge import compose
from profforce.config import TrainConfig
from profforce.data.batch import Batch, Item, collate
from profforce.errors import UserError
from profforce.models.discriminator import LengthDiscriminator, build_discriminator
from profforce.models.mirror import Mirror, MirrorState
from profforce.models.transformer import TransformerTTS
from profforce.nn.device import choose_device
from profforce.nn.noise import PrenetNoise
from profforce.training.optim import build_optimizer, clip_gradients
from profforce.training.pool import PoolBatch
from profforce.training.step import differentiate, professor_forcing_step

ATTENTIONS = ("linear", "softmax")
MIRROR_BATCHES = (1, 32, 128)
NUM_SYMBOLS = 48
NUM_WARMUP = 2


@dataclass(frozen=True)
class Sizes:
    """Length of the made-up utterances."""

    frames: int
    symbols: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if measured, 2 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    try:
        device = choose_device(options.device)
        cases = build_cases(options.override, Sizes(options.frames, options.symbols), device)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    times = measure(cases, options.repeats, device)
    print(json.dumps({"environment": environment(device, options), "ms": summary(times)}, indent=2))
    return 0


def build_cases(
    overrides: Sequence[str], sizes: Sizes, device: torch.device
) -> dict[str, Callable[[], None]]:
    """One function for each thing to time, by its name."""
    cases: dict[str, Callable[[], None]] = {}
    for attention in ATTENTIONS:
        words = ["experiment=demo", f"model.attention={attention}", *overrides]
        config = compose(TrainConfig, "train", words)
        weight = config.method.weight
        for form, weights in {
            "teacher_forcing_step": None,
            "professor_forcing_step": (weight, 0.0),
            "professor_forcing_step_gate_shut": (0.0, 0.0),
        }.items():
            cases[f"{attention}/{form}"] = training_step(config, sizes, device, weights)
        for batch in MIRROR_BATCHES:
            cases[f"{attention}/mirror_step_b{batch}"] = MirrorStep(config, sizes, device, batch)
    return cases


def training_step(
    config: TrainConfig, sizes: Sizes, device: torch.device, weights: tuple[float, float] | None
) -> Callable[[], None]:
    """A whole optimizer step, on a batch that stays the same.

    ``weights`` (C_f, C_t) are those of professor forcing; None is teacher forcing, without a pool.
    """
    model = build_model(config, device).train()
    judge = build_discriminator(config.discriminator, config.model, config.mel.num_mels).to(device)
    control = LengthDiscriminator(config.discriminator.crop_steps).to(device)
    optimizer = build_optimizer(model, config.trainer)
    judge_optimizer = torch.optim.Adam(
        [*judge.parameters(), *control.parameters()], lr=1e-4, fused=True
    )
    real = make_batch(config, sizes, config.trainer.batch_size).to(device)
    noise = PrenetNoise(config.seed, real.indices)
    made = None
    if weights is not None:
        size = config.freerun.batch_size or config.trainer.batch_size
        batch = make_batch(config, sizes, size).to(device)
        made = PoolBatch(batch, PrenetNoise(config.seed + 1, batch.indices))
    crops = torch.Generator().manual_seed(config.seed)

    def step() -> None:
        losses = professor_forcing_step(
            model,
            judge,
            control,
            real,
            made,
            noise=noise,
            weights=weights or (0.0, 0.0),
            judge_learns=True,
            crop_generator=crops,
            config=config,
        )
        differentiate(losses)
        if made is not None:
            judge_optimizer.step()
            judge_optimizer.zero_grad()
        clip_gradients(model, config.trainer.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


class MirrorStep:
    """Calling it takes the next decoder step of a free run, which starts over at its end."""

    def __init__(
        self, config: TrainConfig, sizes: Sizes, device: torch.device, batch_size: int
    ) -> None:
        self.mirror = Mirror(build_model(config, device))
        self.batch = make_batch(config, sizes, batch_size).to(device)
        self.noise = PrenetNoise(config.seed, self.batch.indices)
        self.num_steps = -(-sizes.frames // config.model.reduction_factor)
        self.state = self._start()

    def _start(self) -> MirrorState:
        batch = self.batch
        return self.mirror.start(
            batch.symbols, batch.symbol_lengths, self.num_steps, noise=self.noise
        )

    def prepare(self) -> None:
        """Begin a new free run if this one is at its end; not part of a step's time."""
        if self.state.t == self.num_steps:
            self.state = self._start()

    def __call__(self) -> None:
        """One decoder step."""
        _, self.state = self.mirror.step(self.state)


def build_model(config: TrainConfig, device: torch.device) -> TransformerTTS:
    """An untrained model, the same for every case."""
    torch.manual_seed(config.seed)
    return TransformerTTS(config.model, NUM_SYMBOLS, config.mel.num_mels).to(device)


def make_batch(config: TrainConfig, sizes: Sizes, batch_size: int) -> Batch:
    """Utterances of one length, so that no step has more to do than another."""
    source = torch.Generator().manual_seed(config.seed)
    shape = (sizes.frames, config.mel.num_mels)
    return collate(
        [
            Item(
                index=i,
                id=str(i),
                text="",
                symbols=torch.randint(1, NUM_SYMBOLS, (sizes.symbols,), generator=source),
                mel=torch.randn(shape, generator=source),
                speaker=0,
            )
            for i in range(batch_size)
        ]
    )


def measure(
    cases: dict[str, Callable[[], None]], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Milliseconds of each case, taken in turn ``repeats`` times after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(NUM_WARMUP + repeats):
        for name, case in cases.items():
            if isinstance(case, MirrorStep):
                case.prepare()
            _finish(device)
            began = time.perf_counter()
            case()
            _finish(device)
            if number >= NUM_WARMUP:
                times[name].append(1e3 * (time.perf_counter() - began))
    return times


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and extremes of each case."""
    return {
        name: {
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
        }
        for name, values in times.items()
    }


def environment(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    cuda = device.type == "cuda"
    return {
        "profforce": profforce.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if cuda else str(device),
        "cpu_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "repeats": options.repeats,
        "frames": options.frames,
        "symbols": options.symbols,
        "overrides": ["experiment=demo", *options.override],
    }


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {value}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("override", nargs="*", help="settings, as for profforce train")
    parser.add_argument("--repeats", type=_positive, default=20, help="default: %(default)s")
    parser.add_argument("--threads", type=_positive, default=1, help="default: %(default)s")
    parser.add_argument("--device", default="auto", help="default: %(default)s")
    parser.add_argument("--frames", type=_positive, default=168, help="default: %(default)s")
    parser.add_argument("--symbols", type=_positive, default=40, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
