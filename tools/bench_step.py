"""Time the training step and the mirror at the demo's sizes; prints JSON. No threshold, no verdict.

    python tools/bench_step.py [--threads N] [--repeats N]

Forms are interleaved, so that a drifting machine touches all alike; medians and quartiles in ms.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from profforce.bridge import compose
from profforce.config import TrainConfig
from profforce.data.batch import Batch
from profforce.models.discriminator import LengthDiscriminator, build_discriminator
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.nn.noise import PrenetNoise
from profforce.training.pool import PoolBatch
from profforce.training.step import professor_forcing_step

SYMBOLS, FRAMES, NUM_SYMBOLS, NUM_MELS = 36, 170, 40, 80
STEPS = 32
"""Decoder steps a timed free run."""


def made_up_batch(size: int) -> Batch:
    """Random texts and mels of the demo corpus' mean lengths."""
    numbers = torch.arange(size)
    return Batch(
        indices=numbers,
        ids=[str(i) for i in range(size)],
        texts=[""] * size,
        symbols=torch.randint(1, NUM_SYMBOLS, (size, SYMBOLS)),
        symbol_lengths=torch.full((size,), SYMBOLS),
        mel=torch.randn(size, FRAMES, NUM_MELS),
        mel_lengths=torch.full((size,), FRAMES),
        speakers=torch.zeros(size, dtype=torch.int64),
    )


def forms(config: TrainConfig, name: str) -> dict[str, Callable[[], None]]:
    """What is timed for one kind of self-attention."""
    torch.manual_seed(0)
    model = TransformerTTS(config.model, NUM_SYMBOLS, NUM_MELS)
    judge = build_discriminator(config.discriminator, config.model, NUM_MELS)
    control = LengthDiscriminator(config.discriminator.crop_steps)
    real = made_up_batch(config.trainer.batch_size)
    own = made_up_batch(config.freerun.batch_size or config.trainer.batch_size)
    noise = PrenetNoise(0, real.indices)
    pool = PoolBatch(own, PrenetNoise(1, own.indices))

    def train(drawn: PoolBatch | None, weights: tuple[float, float]) -> None:
        out = professor_forcing_step(
            model.train(),
            judge,
            control,
            real,
            drawn,
            noise=noise,
            weights=weights,
            crop_generator=torch.Generator().manual_seed(0),
            config=config,
        )
        loss: Tensor = out.model if out.discriminator is None else out.model + out.discriminator
        loss.backward()

    def speak(size: int) -> None:
        batch = made_up_batch(size)
        limit = torch.full((size,), STEPS * config.model.reduction_factor)
        Mirror(model).free_run(
            batch.symbols, batch.symbol_lengths, limit, noise=None, stop_threshold=1.0
        )

    return {
        f"{name}/teacher_forcing_step": lambda: train(None, (0.0, 0.0)),
        f"{name}/professor_forcing_step_gate_shut": lambda: train(pool, (0.0, 0.0)),
        f"{name}/professor_forcing_step": lambda: train(pool, (0.02, 0.0)),
        f"{name}/free_run_{STEPS}_steps_b1": lambda: speak(1),
        f"{name}/free_run_{STEPS}_steps_b32": lambda: speak(32),
        f"{name}/free_run_{STEPS}_steps_b128": lambda: speak(128),
    }


def main() -> int:
    """Time all forms and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = compose(TrainConfig, "train", ["experiment=demo"])
    timed: dict[str, Callable[[], None]] = {}
    for attention in ("linear", "softmax"):
        model = replace(config.model, attention=attention)
        timed |= forms(replace(config, model=model), attention)
    seconds: dict[str, list[float]] = {form: [] for form in timed}
    for repeat in range(options.repeats + 1):
        for form, run in timed.items():
            began = time.perf_counter()
            run()
            if repeat:  # the first round warms up
                seconds[form].append(time.perf_counter() - began)
    rows = []
    for form, values in seconds.items():
        low, middle, high = (1000 * v for v in statistics.quantiles(values, n=4))
        rows.append({"form": form, "ms_median": round(middle, 2), "ms_iqr": round(high - low, 2)})
    environment = {
        "machine": platform.machine(),
        "processor": platform.processor(),
        "torch": torch.__version__,
        "threads": options.threads,
    }
    print(json.dumps({"environment": environment, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
