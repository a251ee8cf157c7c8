"""Mixed precision: matrix products in half precision, weights, sums and losses in float32.

Only the model's passes over frames run under autocast; its outputs are float32 again, so that
losses and discriminators see no half. Free runs have their own setting (``freerun.precision``).
float16, whose gradients would vanish, trains with a scaled loss (Micikevicius et al. 2018,
arXiv:1710.03740, section 3.2): a step whose gradients overflow is left out and the scale halved.
"""

import logging
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from profforce.config import TrainerPrecision
from profforce.errors import UserError

log = logging.getLogger(__name__)

FIRST_SCALE = 2.0**14
"""Halved within a few steps where it is too much, doubled after 2,000 steps without an overflow."""
HALVES = {
    TrainerPrecision.float32: None,
    TrainerPrecision.bfloat16: torch.bfloat16,
    TrainerPrecision.float16: torch.float16,
}


def half_type(precision: TrainerPrecision, device: torch.device) -> torch.dtype | None:
    """The type that matrix products run in; None for that of the weights.

    Raises:
        UserError: if the device does not multiply it.
    """
    half = HALVES[precision]
    if half is None:
        return None
    if device.type == "cuda" and half is torch.bfloat16:
        with torch.cuda.device(device):
            supported = torch.cuda.is_bf16_supported(including_emulation=False)
        if not supported:
            raise UserError(
                "this device does not multiply bfloat16",
                where="trainer.precision=bfloat16",
                got=torch.cuda.get_device_name(device),
                expected="a GPU from 2020 on (sm_80)",
                remedy="set trainer.precision=float16",
            )
    log.info("matrix products in %s, weights and losses in float32", precision)
    return half


class LossScale:
    """The factor of a float16 loss; 1, and nothing to do, in other precisions."""

    def __init__(self, precision: TrainerPrecision, device: torch.device) -> None:
        enabled = precision is TrainerPrecision.float16
        self._scaler = torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE, enabled=enabled)
        self.overflows = 0
        """Steps left out because their gradients overflowed."""

    @property
    def is_used(self) -> bool:
        """Whether losses are scaled."""
        return self._scaler.is_enabled()

    @property
    def value(self) -> float:
        """The factor."""
        return float(self._scaler.get_scale())

    def times(self, loss: Tensor) -> Tensor:
        """The loss to differentiate."""
        return self._scaler.scale(loss)

    def take_out(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Divide the gradients by the factor, once a step."""
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)

    def pass_on(self, *, taken: bool, loss: Tensor) -> bool:
        """To the next step's factor; whether a step that was not ``taken`` is the factor's doing.

        A loss that is no number is the batch's doing, and what overflows without a factor, too.
        """
        if not self.is_used:
            return False
        before = self.value
        blamed = not taken and before > 1 and math.isfinite(float(loss))
        self.overflows += blamed
        self._scaler.update(None if taken or blamed else before)
        return blamed

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"scaler": self._scaler.state_dict(), "overflows": self.overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`; a run in another precision begins anew."""
        self.overflows = state["overflows"]
        if self.is_used and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
