"""Optimizers, learning-rate schedule and averaged weights."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from profforce.config import TrainerConfig

Weights = tuple[Tensor, ...] | list[Tensor]


def build_optimizer(model: nn.Module, config: TrainerConfig) -> torch.optim.AdamW:
    """AdamW; biases, norms and scalar gains are not decayed."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.98), eps=1e-9, fused=True)


def build_schedule(optimizer: torch.optim.Optimizer, config: TrainerConfig) -> LambdaLR:
    """Linear warm-up, then a half cosine from ``lr`` to ``min_lr`` at ``steps``."""
    floor = min(config.min_lr / config.lr, 1.0)

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        whole = max(config.steps - config.warmup_steps, 1)
        done = min((step - config.warmup_steps) / whole, 1.0)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return LambdaLR(optimizer, factor)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], schedule: LambdaLR | None = None
) -> None:
    """Load what the optimizer has learned; rates and decay stay those of today's settings.

    A schedule must be loaded already. With unchanged settings this is the state as it was saved.
    """
    names = ("lr", "initial_lr", "weight_decay")
    wanted = [{n: group[n] for n in names if n in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, wanted, strict=True):
        group.update(settings)
    if schedule is None:
        return
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    for group, factor in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * factor(schedule.last_epoch)
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]


def build_average(model: nn.Module, decay: float) -> AveragedModel:
    """Exponential moving average of the weights; buffers are those of ``model``.

    The decay warms up as ``(1 + n) / (10 + n)``, so that the start does not linger in a short run.
    """

    def average(means: Weights, values: Weights, count: Tensor | int) -> None:
        n = float(count)
        get_ema_multi_avg_fn(min(decay, (1 + n) / (10 + n)))(means, values, count)

    return AveragedModel(model, multi_avg_fn=average)


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradients to a norm of at most ``limit``; returns the norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), limit)
