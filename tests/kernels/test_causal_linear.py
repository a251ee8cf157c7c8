"""The chunked form and the step against the obvious loop, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.kernels.ops import causal_linear_attention, causal_linear_step
from profforce.kernels.reference import causal_linear_attention_reference
from profforce.kernels.state import LinearState, empty_state


def make(batch: int, steps: int, heads: int, key: int, value: int, seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()

    return [
        draw(batch, steps, heads, key),
        draw(batch, steps, heads, key),
        draw(batch, steps, heads, value),
        draw(batch, heads, key, value).detach().abs().requires_grad_(),
        draw(batch, heads, key).detach().abs().requires_grad_(),
    ]


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    steps=st.sampled_from([1, 2, 5, 127, 128, 129, 300]),
    heads=st.integers(1, 2),
    widths=st.sampled_from([(4, 4), (3, 5)]),
    feature_map=st.sampled_from(["elu", "relu"]),
    seed=st.integers(0, 999),
)
def test_outputs_state_and_gradients_equal_the_reference(
    batch: int, steps: int, heads: int, widths: tuple[int, int], feature_map: str, seed: int
) -> None:
    lengths = torch.randint(0, steps + 1, (batch,), generator=torch.Generator().manual_seed(seed))
    results = []
    for form in (causal_linear_attention, causal_linear_attention_reference):
        q, k, v, s, z = make(batch, steps, heads, *widths, seed)
        out, state = form(
            q, k, v, lengths=lengths, state=LinearState(s, z), feature_map=feature_map
        )
        weight = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view_as(out)
        ((out * weight).sum() + state.s.square().sum() + state.z.square().sum()).backward()
        results.append([out, state.s, state.z, q.grad, k.grad, v.grad, s.grad, z.grad])
    for ours, truth in zip(*results, strict=True):
        assert ours is not None and truth is not None
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(cut=st.integers(0, 150), seed=st.integers(0, 99))
def test_split_and_resume_equals_whole(cut: int, seed: int) -> None:
    q, k, v, _, _ = make(2, 150, 2, 4, 4, seed)
    whole, end = causal_linear_attention(q, k, v)
    first, state = causal_linear_attention(q[:, :cut], k[:, :cut], v[:, :cut])
    second, last = causal_linear_attention(q[:, cut:], k[:, cut:], v[:, cut:], state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(last, end)


def test_padding_is_exactly_zero_and_leaves_the_state_alone() -> None:
    q, k, v, _, _ = make(3, 140, 2, 4, 4, 0)
    lengths = torch.tensor([0, 7, 140])
    out, state = causal_linear_attention(q, k, v, lengths=lengths)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.equal(out[1, 7:], torch.zeros_like(out[1, 7:]))
    _, short = causal_linear_attention(q[1:2, :7], k[1:2, :7], v[1:2, :7])
    torch.testing.assert_close(state.s[1:2], short.s)
    assert state.s[0].abs().max() == 0


def test_steps_equal_the_parallel_form_and_keep_their_storage() -> None:
    q, k, v, _, _ = make(2, 40, 2, 4, 6, 1)
    truth, _ = causal_linear_attention(q, k, v)
    state = empty_state(2, 2, 4, 6, like=q)
    where = state.s.data_ptr()
    for t in range(40):
        out, state = causal_linear_step(q[:, t].detach(), k[:, t].detach(), v[:, t].detach(), state)
        torch.testing.assert_close(out, truth[:, t].detach(), rtol=1e-10, atol=1e-10)
    assert state.s.data_ptr() == where


def test_half_precision_accumulates_in_float32() -> None:
    q, k, v, _, _ = make(1, 600, 1, 8, 8, 2)
    truth, _ = causal_linear_attention(q, k, v)
    out, state = causal_linear_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert out.dtype == torch.bfloat16
    assert state.s.dtype == torch.float32
    torch.testing.assert_close(out.double(), truth, rtol=0.05, atol=0.05)


def test_any_strides_and_a_callable_feature_map() -> None:
    q, k, v, _, _ = make(2, 30, 2, 4, 4, 3)
    fused = torch.stack([q, k, v], 2)
    views = fused.transpose(1, 3).contiguous().transpose(1, 3).unbind(2)
    out, _ = causal_linear_attention(*views, feature_map=torch.exp)
    truth, _ = causal_linear_attention_reference(q, k, v, feature_map=torch.exp)
    torch.testing.assert_close(out, truth)


def test_wrong_shapes_and_names_are_refused() -> None:
    q, k, v, _, _ = make(1, 3, 1, 4, 4, 0)
    with pytest.raises(ValueError, match="expected q, k"):
        causal_linear_attention(q[0], k, v)
    with pytest.raises(ValueError, match="unknown feature map 'tanh'"):
        causal_linear_attention(q, k, v, feature_map="tanh")
    assert causal_linear_attention(q[:, :0], k[:, :0], v[:, :0])[0].shape == (1, 0, 1, 4)
