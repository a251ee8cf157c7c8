"""Computing a part of a pass once more, as it was: its dropout, its autocast, its gradients."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor


def draw_seed() -> int:
    """One draw from the global generator, whatever the number of segments."""
    return int(torch.randint(2**31, ()))


@contextmanager
def replayed(seed: int, device: torch.device) -> Iterator[None]:
    """The global generators start from ``seed`` inside and go on as before afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def autocast_of(device: torch.device) -> Callable[[], torch.autocast]:
    """Makes the present autocast again, since a backward pass runs outside of it."""
    return partial(
        torch.autocast,
        device.type,
        enabled=torch.is_autocast_enabled(device.type),
        dtype=torch.get_autocast_dtype(device.type),
    )


def gradients(
    roots: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor]
) -> Iterator[Tensor | None]:
    """Gradients of ``wanted`` from pairs (output, its gradient)."""
    outputs = [y for y, _ in roots]
    return iter(torch.autograd.grad(outputs, wanted, [g for _, g in roots], allow_unused=True))


def added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """Their sum, in the place of ``total``; the first is copied, as it may be another's too."""
    if part is None:
        return total
    return part.clone() if total is None else total.add_(part)
