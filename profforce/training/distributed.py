"""Several processes that train as one (torchrun): who they are and what they tell each other.

Each process takes its own batches; what they sum is gradients and scalars, once an optimizer step,
after all backward passes. So every form of a step works as in one process, whatever it
differentiates in which order, and nothing depends on which weights a pass touches. Sums come out
the same to the bit in every process, and so do the weights that follow from them.

One collective call is made in the same order everywhere: what to do when follows from step numbers
and from sums, never from what one process alone knows.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from profforce.errors import UserError
from profforce.jobs import LostError, launched, restarts

T = TypeVar("T")
BUCKET_BYTES = 2**25
"""Gradients that are sent together: enough to fill a network, few enough to overlap copies."""


@dataclass(frozen=True)
class Team:
    """This process among those that train together; alone by default.

    The default group carries tensors and objects of the CPU (gloo), ``device_group`` those on GPUs.
    """

    rank: int = 0
    size: int = 1
    device_group: Any = None
    timeout_minutes: float = 30.0
    launcher: int | None = None
    """Number of the process that watches over them, as it was when they met."""

    @property
    def is_abandoned(self) -> bool:
        """Whether that process is gone: nobody would pass signals on, or notice an end."""
        return self.launcher is not None and self.launcher != os.getppid()

    @property
    def share(self) -> slice:
        """Which of a sequence this process takes, where all divide it."""
        return slice(self.rank, None, self.size)

    @property
    def is_first(self) -> bool:
        """The process that writes the run folder and speaks to people."""
        return self.rank == 0

    def from_first(self, what: str, act: Callable[[], T]) -> T:
        """Let the first process do ``act``; all get its result, which has to be picklable.

        Raises:
            LostError: in the others, if it failed there or took longer than the time limit.
        """
        if self.size == 1:
            return act()
        if not self.is_first:
            return self._received(what)  # type: ignore[no-any-return]
        try:
            result = act()
        except BaseException as err:
            self._tell((False, f"{type(err).__name__}"), what)
            raise
        self._tell((True, result), what)
        return result

    def _tell(self, message: tuple[bool, Any], what: str) -> None:
        with self._waiting_for(what):
            dist.broadcast_object_list([message], src=0)

    def _received(self, what: str) -> Any:
        box: list[Any] = [None]
        with self._waiting_for(what):
            dist.broadcast_object_list(box, src=0)
        done, result = box[0]
        if not done:
            raise LostError(f"process 0 failed at {what}", got=result, remedy="see its own message")
        return result

    def gathered(self, what: str, value: T) -> list[T]:
        """Everyone's ``value``, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._waiting_for(what):
            dist.all_gather_object(values, value)
        return values

    def summed(self, values: Tensor, what: str) -> Tensor:
        """The sum of everyone's ``values [N]``, the same to the bit everywhere."""
        if self.size == 1:
            return values
        values = values.clone()
        with self._waiting_for(what):
            dist.all_reduce(values, group=self._group_of(values))
        return values

    def largest(self, value: float, what: str) -> float:
        """The largest of everyone's ``value``."""
        return max(self.gathered(what, value))

    def sum_gradients(self, modules: Iterable[nn.Module]) -> None:
        """Replace the gradients of ``modules`` by the sums of everyone's.

        All have to hold gradients of the same parameters.
        """
        if self.size == 1:
            return
        weights = [p for module in modules for p in module.parameters()]
        gradients = [p.grad for p in weights if p.grad is not None]
        with self._waiting_for("the gradients"):
            sent = [(bucket, *self._send(bucket)) for bucket in _buckets(gradients)]
            for bucket, flat, work in sent:
                work.wait()
                parts = flat.split([gradient.numel() for gradient in bucket])
                for gradient, part in zip(bucket, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def share_weights(self, modules: Iterable[nn.Module]) -> None:
        """Give everyone the first one's parameters and buffers."""
        if self.size == 1:
            return
        with self._waiting_for("the first weights"):
            for module in modules:
                for value in (*module.parameters(), *module.buffers()):
                    dist.broadcast(value.detach(), src=0, group=self._group_of(value))

    def require_equal(
        self,
        what: str,
        value: object,
        remedy: str = "run the same version on the same kind of device in all of them",
    ) -> None:
        """Refuse to go on if ``value`` is not the same everywhere.

        Raises:
            LostError: if it differs.
        """
        values = self.gathered(what, value)
        if any(other != values[0] for other in values):
            raise LostError(
                f"the processes disagree about {what}",
                got=", ".join(f"{other} in process {rank}" for rank, other in enumerate(values)),
                remedy=remedy,
            )

    def _send(self, bucket: Sequence[Tensor]) -> tuple[Tensor, Any]:
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        return flat, dist.all_reduce(flat, group=self._group_of(flat), async_op=True)

    def _group_of(self, value: Tensor) -> Any:
        return None if value.device.type == "cpu" else self.device_group

    @contextmanager
    def _waiting_for(self, what: str) -> Iterator[None]:
        """Say in one line what could not be had; PyTorch's own error says how."""
        try:
            yield
        except RuntimeError as err:
            raise LostError(
                f"process {self.rank} of {self.size} waited in vain for {what} of the others",
                got=_reason(err),
                expected=f"all of them there within {self.timeout_minutes:g} minutes",
                remedy="look for the message of the one that ended; if none did, raise "
                "trainer.timeout_minutes",
            ) from err


ALONE = Team()


def interleaved(parts: Sequence[Sequence[T]]) -> list[T]:
    """What each process made of its :attr:`Team.share`, in the order of the whole."""
    longest = max(map(len, parts))
    return [part[k] for k in range(longest) for part in parts if k < len(part)]


@contextmanager
def joined(device: str, timeout_minutes: float) -> Iterator[Team]:
    """The team that torchrun has started, for the time of the block.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``: with CUDA each process of a machine has its own GPU.
        timeout_minutes: longest wait for the others.

    Raises:
        UserError: if they cannot find each other, or have fewer GPUs than processes.
    """
    limit = timedelta(minutes=timeout_minutes)
    launcher = os.getppid() if launched() else None  # alive: it keeps the store they meet at
    try:
        # of its own, for torchrun may keep one store over restarts, with the addresses of the dead
        store = PrefixStore(f"profforce-{restarts()}", next(rendezvous("env://"))[0])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except (KeyError, RuntimeError, ValueError) as err:
        raise UserError(
            "the processes cannot find each other",
            where="torchrun",
            got=f"{type(err).__name__}: {_reason(err)}",
            remedy="start all of them with one torchrun",
        ) from err
    group = None
    if local_device(device).startswith("cuda"):
        if not dist.is_nccl_available():
            raise UserError(
                "this PyTorch has no NCCL, by which GPUs talk",
                where="device",
                got=device,
                remedy="use device=cpu, or one process",
            )
        torch.cuda.set_device(local_device(device))
        group = dist.new_group(backend="nccl", timeout=limit)
    yield Team(rank, size, group, timeout_minutes, launcher)
    dist.destroy_process_group()  # not after an error: the others would not answer


def local_device(device: str) -> str:
    """``device`` as it is called in this process: ``cuda`` is the GPU of its local rank.

    Raises:
        UserError: for one GPU that several processes would share.
    """
    local, here = (
        int(os.environ.get(n, d)) for n, d in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "mps":
        raise UserError(
            "several processes need CPUs or CUDA",
            where="device",
            got=device,
            remedy="use device=cpu, or one process",
        )
    if not device.startswith("cuda"):
        return device
    if device != "cuda" and here > 1:
        raise UserError(
            "one GPU for several processes", where="device", got=device, remedy="use device=cuda"
        )
    if device == "cuda" and here > torch.cuda.device_count():
        raise UserError(
            "more processes than GPUs",
            where="torchrun",
            got=f"{here} processes on a machine with {torch.cuda.device_count()}",
            remedy=f"--nproc-per-node {torch.cuda.device_count()}, or device=cpu",
        )
    return device if device != "cuda" else f"cuda:{local}"


def _reason(err: BaseException) -> str:
    """What PyTorch says, without the places in its sources and its own advice."""
    first = str(err).partition("\n")[0].partition(". This is typically")[0]
    return re.sub(r"\[\S+:\d+\] ", "", first)[:200]


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """``gradients`` in order, those of one kind and of at most ``BUCKET_BYTES`` together."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        added = gradient.numel() * gradient.element_size()
        if bucket and (size + added > BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += added
    if bucket:
        yield bucket
