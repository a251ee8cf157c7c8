"""Steps whose loss or gradient is not a number: skipped and counted; too many end the run."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profforce.errors import UserError

MOST_IN_A_ROW = 10
"""Skipped steps after which a run ends: nothing is learned any more."""
log = logging.getLogger(__name__)


class DivergedError(UserError):
    """Training came to where it learns nothing any more."""

    exit_code = 1
    """The command line was right, the task failed."""


@dataclass
class Skips:
    """How many optimizer steps were left out, of the run so far."""

    total: int = 0
    in_a_row: int = 0

    def count(self, *, taken: bool) -> None:
        """Note a step that was taken or skipped."""
        self.total += not taken
        self.in_a_row = 0 if taken else self.in_a_row + 1


def gradient_norm(module: nn.Module) -> Tensor:
    """Norm of the gradients of ``module``, a scalar; 0 where there is none."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())


def all_finite(values: Iterable[Tensor]) -> bool:
    """Whether the scalars are numbers; reads the device once."""
    return bool(torch.stack([value.float() for value in values]).isfinite().all())


def tell_skipped(step: int, loss: Tensor, norm: Tensor, ids: Sequence[str]) -> None:
    """One line of the log that names the step and its utterances."""
    log.warning(
        "step %d skipped: loss %g, gradient norm %g; batch: %s",
        *(step, float(loss), float(norm), ", ".join(ids)),
    )


def check_weights(modules: Iterable[nn.Module], where: str) -> None:
    """Refuse to save weights that are not numbers over those that were.

    Raises:
        DivergedError: if a parameter is infinite or no number.
    """
    for module in modules:
        values = list(module.parameters())
        # a norm may overflow where each value is a number
        if values and not bool(torch.stack([p.isfinite().all() for p in values]).all()):
            raise DivergedError(
                "training diverged: the weights are not finite",
                where=where,
                got=f"a {type(module).__name__} with values that are no numbers",
                remedy="lower trainer.lr or trainer.clip_norm; the last checkpoint is untouched, "
                "so --resume goes on from it",
            )
