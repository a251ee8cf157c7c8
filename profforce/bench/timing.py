"""Taking times in turn, so that whatever else the machine does falls on all forms alike."""

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Tick = Callable[[], None]


def interleave(
    forms: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int,
    device: torch.device,
    seed: int = 0,
    tick: Tick = lambda: None,
) -> dict[str, list[float]]:
    """Milliseconds of each form, once a round, in an order drawn anew for every round.

    Args:
        forms: what to call.
        repeats: rounds that are counted.
        warmup: rounds before them.
        device: where the work is done; on CUDA its own clock counts.
        seed: of the orders.
        tick: called after every call.
    """
    times: dict[str, list[float]] = {name: [] for name in forms}
    order, orders = list(forms), random.Random(seed)
    for number in range(warmup + repeats):
        orders.shuffle(order)
        for name in order:
            elapsed = _milliseconds(forms[name], device)
            if number >= warmup:
                times[name].append(elapsed)
            tick()
    return times


def _milliseconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            begin.record()
            run()
            end.record()
            end.synchronize()
        return float(begin.elapsed_time(end))
    began = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - began)


def spread(values: list[float]) -> tuple[float, float]:
    """Median and interquartile range."""
    if len(values) == 1:
        return values[0], 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, high - low
