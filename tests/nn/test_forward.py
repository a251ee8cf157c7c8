"""Forward attention: the recursion in both forms, its gradients, and what it can reach."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.config import CrossAttentionKind, ModelConfig
from profforce.nn.attention import Memory
from profforce.nn.forward import NUM_MOVES, ForwardCrossAttention, _Walk


def layer(seed: int, dtype: torch.dtype = torch.float64) -> ForwardCrossAttention:
    torch.manual_seed(seed)
    kind = CrossAttentionKind.forward
    made = ForwardCrossAttention(ModelConfig(width=12, num_heads=3, cross_attention=kind)).to(dtype)
    torch.nn.init.normal_(made.move.weight)
    return made


def memory_of(made: ForwardCrossAttention, batch: int, symbols: int) -> Memory:
    lengths = torch.randint(1, symbols + 1, (batch, 1))
    encoded = torch.randn(batch, symbols, 12, dtype=made.out.weight.dtype)
    return made.memory(encoded, torch.arange(symbols) < lengths)


def stepped(made: ForwardCrossAttention, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    state, rows = None, []
    for t in range(x.shape[1]):
        y, weights, state = made.step(x[:, t], memory, state)
        rows.append((y, weights))
    y, weights = zip(*rows, strict=True)
    return torch.stack(y, 1), torch.stack(weights, 2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 9), st.integers(1, 7))
def test_both_forms_and_their_gradients_are_the_same(
    seed: int, batch: int, steps: int, symbols: int
) -> None:
    made = layer(seed)
    memory = memory_of(made, batch, symbols)
    x = torch.randn(batch, steps, 12, dtype=torch.float64, requires_grad=True)
    found = []
    for form in (made, lambda *given: stepped(made, *given)):
        y, weights = form(x, memory)
        torch.manual_seed(1)
        loss = (y * torch.randn_like(y)).sum() + (weights * torch.randn_like(weights)).sum()
        found.append(
            (y, weights, *torch.autograd.grad(loss, [x, *made.parameters()], retain_graph=True))
        )
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-10)


def test_the_gradient_of_the_walk_is_that_of_its_differences() -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    moves = torch.randn(2, 5, NUM_MOVES, dtype=torch.float64).softmax(-1).requires_grad_()
    reached = torch.eye(2, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: _Walk.apply(a, b, reached), (scores, moves))


def test_attention_starts_at_the_first_symbol_and_leaves_out_one_at_most() -> None:
    """With nothing to tell the symbols apart."""
    made = layer(0)
    memory = memory_of(made, 1, 30)._replace(k=torch.zeros(1, 3, 30, 4, dtype=torch.float64))
    memory = memory._replace(mask=torch.ones_like(memory.mask))
    _, weights = made(torch.randn(1, 8, 12, dtype=torch.float64), memory)
    place = torch.arange(30)
    for t in range(8):
        assert weights[0, :, t, place > 2 * (t + 1)].sum(-1).max() < 0.01


def test_what_was_heard_already_is_not_heard_again_far_away() -> None:
    """A symbol that occurs twice is found where the last step was."""
    made = layer(0)
    with torch.no_grad():
        made.move.weight.zero_()
        made.move.bias.copy_(torch.tensor([0.5, 0.4, 0.1]).log())
        made.q.weight.copy_(torch.eye(12))
        made.q.bias.zero_()
    sounds = 3 * torch.eye(12, dtype=torch.float64)
    text = [0, 1, 2, 3, 1, 4, 0, 1]
    keys = sounds[text].unflatten(-1, (3, 4)).transpose(0, 1)[None]
    memory = Memory(keys, keys, torch.ones(1, 1, 1, len(text), dtype=torch.bool))
    said = [0, 0, 1, 2, 2, 3, 1, 1, 4]
    _, weights = made(sounds[said][None] * 2, memory)
    guided = weights[0].mean(0).argmax(-1).tolist()
    assert guided == [0, 0, 1, 2, 2, 3, 4, 4, 5]
