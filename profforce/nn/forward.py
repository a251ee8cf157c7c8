"""Cross-attention that goes on from where it was: forward attention (Zhang et al. 2018).

Every decoder step predicts how likely it stays, goes on to the next symbol or leaves one out. What
the last step attended to, moved by that, is what this step expects; its weights are the softmax of
the content's scores and the logarithm of the expectation (arXiv:1807.06736, equations 8 and 9, with
moves that are predicted). So every move is judged by the text at hand: a letter that was heard
twice is not counted twice, and no step is far from the last one, however long the text.

The recursion runs over small rows, ``[B, H, S]`` a step; projections and scores are computed at
once.

Shapes: B batch, U decoder steps, S symbols, D width, H heads, J moves.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from profforce.config import ModelConfig
from profforce.nn.attention import CrossAttention, Memory

NUM_MOVES = 3
"""J: to stay, to go on, to leave a symbol out."""
FLOOR = 1e-5
"""Added to every expectation: what is out of reach can still be found by a score that is clear."""


class ForwardCrossAttention(CrossAttention):
    """All heads expect what the mean of them attended to in the step before, moved."""

    in_segments: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.move = nn.Linear(config.width, NUM_MOVES)
        nn.init.zeros_(self.move.weight)
        pace = min(config.symbols_per_frame * config.reduction_factor, 1.0)
        first = torch.tensor([1 - 0.9 * pace, 0.8 * pace, 0.1 * pace])
        with torch.no_grad():
            self.move.bias.copy_(first.log())

    def forward(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """See :class:`CrossAttention`."""
        scores = self.masked_scores(x, memory)
        first = first_symbol(scores[:, 0, 0])
        weights = _Walk.apply(scores, self.moves(x, scores), first)
        return self.gather(weights, memory), weights

    def init_state(self, batch: int, num_symbols: int, like: Tensor) -> Tensor:
        """``[B, S]``, what was attended to: nothing yet, which stands for the first symbol."""
        kind = torch.promote_types(like.dtype, torch.float32)
        return like.new_zeros(batch, num_symbols, dtype=kind)

    def step(
        self, x: Tensor, memory: Memory, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`CrossAttention`."""
        scores = self.masked_scores(x[:, None], memory)
        reached = first_symbol(scores[:, 0, 0])
        if state is not None:
            reached = torch.where(state.sum(-1, keepdim=True) > 0, state, reached)
        moves = self.moves(x[:, None], scores)[:, 0]
        weights = (scores[:, :, 0] + _expected(_moved(reached), moves).log()[:, None]).softmax(-1)
        return self.gather(weights[:, :, None], memory)[:, 0], weights, weights.mean(1)

    def segment(
        self, x: Tensor, lengths: Tensor, memory: Memory, enter: Callable[[Any], Any]
    ) -> tuple[Tensor, Tensor, Any]:
        """There is none: the state is no sum, so that it cannot be had back from a later one."""
        raise NotImplementedError

    def masked_scores(self, x: Tensor, memory: Memory) -> Tensor:
        """``[B, H, U, S]``, in float32 or better."""
        scores = self.scores(x, memory)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return scores.masked_fill(~memory.mask, torch.finfo(scores.dtype).min)

    def moves(self, x: Tensor, like: Tensor) -> Tensor:
        """Probabilities of the moves, ``[B, U, J]``."""
        return self.move(x).to(like.dtype).softmax(-1)  # type: ignore[no-any-return]


def first_symbol(like: Tensor) -> Tensor:
    """``[B, S]`` as ``like``, all attention on the first symbol."""
    place = torch.arange(like.shape[1], device=like.device)
    return (place == 0).to(like.dtype).expand_as(like)


def _moved(reached: Tensor) -> Tensor:
    """``[..., S]`` -> ``[..., J, S]``, moved by 0 to J - 1 symbols."""
    size = reached.shape[-1]
    return torch.stack([F.pad(reached, (j, 0))[..., :size] for j in range(NUM_MOVES)], -2)


def _expected(moved: Tensor, moves: Tensor) -> Tensor:
    """``[..., S]`` above 0 from ``moved [..., J, S]`` and ``moves [..., J]``."""
    return (moves[..., None] * moved).sum(-2) + FLOOR


class _Walk(torch.autograd.Function):
    """``(scores [B, H, U, S], moves [B, U, J], reached [B, S]) -> weights [B, H, U, S]``.

    Step by step, in few and small operations: what does not depend on the step before is left to
    the end.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, moves: Tensor, reached: Tensor) -> Tensor:
        weights, size = torch.empty_like(scores), scores.shape[-1]
        padded = F.pad(reached, (NUM_MOVES - 1, 0))
        moved = padded.unfold(-1, size, 1)  # a view, moved by J - 1 to 0
        backwards = moves.flip(-1)
        for t in range(scores.shape[2]):
            expected = _expected(moved, backwards[:, t]).log()
            weights[:, :, t] = torch.softmax(scores[:, :, t] + expected[:, None], -1)
            padded[:, NUM_MOVES - 1 :] = weights[:, :, t].mean(1)
        ctx.save_for_backward(weights, moves, reached)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, moves, first = ctx.saved_tensors
        size, heads = weights.shape[-1], weights.shape[1]
        before = _moved(torch.cat([first[:, None], weights.mean(1)[:, :-1]], 1))
        expected = _expected(before, moves)
        grad_scores, grad_expected = torch.empty_like(weights), torch.empty_like(expected)
        padded = F.pad(torch.zeros_like(first), (0, NUM_MOVES - 1))
        ahead = padded.unfold(-1, size, 1)  # a view, moved back by 0 to J - 1
        carried = torch.zeros_like(first)
        for t in reversed(range(weights.shape[2])):
            own = weights[:, :, t]
            total = grad[:, :, t] + carried[:, None] / heads
            total = own * (total - (own * total).sum(-1, keepdim=True))
            grad_scores[:, :, t] = total
            grad_expected[:, t] = padded[:, :size] = total.sum(1) / expected[:, t]
            carried = (moves[:, t, :, None] * ahead).sum(-2)
        return grad_scores, (grad_expected[:, :, None] * before).sum(-1), None
