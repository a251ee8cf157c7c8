"""The operators within PyTorch: registration, compile, AMP, checkpointing, functional gradients."""

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from profforce.kernels.ops import (
    causal_linear_attention,
    causal_linear_op,
    causal_linear_step,
    causal_linear_step_op,
)
from profforce.kernels.state import LinearState, empty_state


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)


def qkv(dtype: torch.dtype = torch.float32, steps: int = 40) -> list[Tensor]:
    return [draw(2, steps, 2, 16, seed=seed, dtype=dtype) for seed in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("with_state", [False, True])
def test_the_operator_passes_opcheck(dtype: torch.dtype, with_state: bool) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(dtype))
    s = draw(2, 2, 16, 16, dtype=dtype).requires_grad_() if with_state else None
    z = draw(2, 2, 16, dtype=dtype).abs().requires_grad_() if with_state else None
    lengths = torch.tensor([40, 17])
    torch.library.opcheck(causal_linear_op, (q, k, v, lengths, s, z, "elu"))


def test_the_step_operator_passes_opcheck() -> None:
    q, k, v = (x[:, 0] for x in qkv())
    s, z = draw(2, 2, 16, 16), draw(2, 2, 16).abs()
    torch.library.opcheck(causal_linear_step_op, (q, k, v, s, z, "elu"))


@pytest.mark.parametrize("feature_map", ["elu", "identity"])
def test_gradcheck(feature_map: str) -> None:
    q, k, v = (x[:, :, :, :3].abs().add(0.1) for x in qkv(torch.float64, steps=70))
    inputs = [q, k, v, draw(2, 2, 3, 3).double(), draw(2, 2, 3).double().abs()]

    def run(q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        lengths = torch.tensor([70, 33])
        state = LinearState(s, z)
        out, end = causal_linear_attention(
            q, k, v, lengths=lengths, state=state, feature_map=feature_map
        )
        return out, *end

    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs], fast_mode=True)


def loss_of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out, state = causal_linear_attention(q, k, v, lengths=torch.tensor([40, 17]))
    return out.square().sum() + state.s.sum()


@pytest.mark.slow
def test_compile_sees_through_forward_and_backward() -> None:
    compiled = torch.compile(loss_of, backend="aot_eager", fullgraph=True)
    results = []
    for run in (loss_of, compiled):
        inputs = [x.requires_grad_() for x in qkv()]
        results.append(torch.autograd.grad(run(*inputs), inputs))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.slow
def test_compile_sees_through_the_step_in_place() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor) -> Tensor:
        out, _ = causal_linear_step(q, k, v, LinearState(s, z))
        return out + s.sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    inputs = [x[:, 0] for x in qkv()]
    expected_state = empty_state(2, 2, 16, 16, like=inputs[0])
    state = empty_state(2, 2, 16, 16, like=inputs[0])
    torch.testing.assert_close(compiled(*inputs, *state), run(*inputs, *expected_state))
    torch.testing.assert_close(state, expected_state)
    assert state.s.abs().sum() > 0


def test_autocast_gives_bfloat16_with_float32_state_and_gradients_of_the_leaves() -> None:
    x = draw(2, 40, 2, 16).requires_grad_()
    weight = draw(16, 48, seed=1).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = (x @ weight).chunk(3, -1)
        assert q.dtype == torch.bfloat16
        out, state = causal_linear_attention(q, k, v)
    assert out.dtype == torch.bfloat16 and state.s.dtype == torch.float32
    out.float().square().sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    assert weight.grad.isfinite().all() and weight.grad.abs().sum() > 0


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    results = []
    for through in (False, True):
        inputs = [x.requires_grad_() for x in qkv()]
        loss = checkpoint(loss_of, *inputs, use_reentrant=False) if through else loss_of(*inputs)
        results.append(torch.autograd.grad(loss, inputs))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_functional_gradients() -> None:
    inputs = qkv()
    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(loss_of(*leaves), leaves)
    torch.testing.assert_close(torch.func.grad(loss_of, (0, 1, 2))(*inputs), expected)
    _, pull = torch.func.vjp(loss_of, *inputs)
    torch.testing.assert_close(pull(torch.tensor(1.0)), expected)


def test_a_second_derivative_is_refused() -> None:
    inputs = [x.requires_grad_() for x in qkv()]
    (dq,) = torch.autograd.grad(loss_of(*inputs), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        dq.sum().backward()


def test_gradients_of_every_utterance_by_vmap() -> None:
    def loss(q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
        out, state = causal_linear_attention(
            q[None], k[None], v[None], lengths=length[None], state=start
        )
        return out.square().sum() + state.s.sum()

    start = LinearState(draw(1, 2, 16, 16), draw(1, 2, 16).abs())
    inputs, lengths = qkv(), torch.tensor([40, 17])
    together = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(*inputs, lengths)
    for i in range(2):
        alone = torch.func.grad(loss, (0, 1, 2))(*(x[i] for x in inputs), lengths[i])
        torch.testing.assert_close(tuple(x[i] for x in together), alone)


def test_one_step_of_the_attention_is_the_differentiable_step() -> None:
    q, k, v = (x[:, :1] for x in qkv())
    state = LinearState(draw(2, 2, 16, 16).requires_grad_(), draw(2, 2, 16).abs().requires_grad_())
    out, end = causal_linear_attention(q, k, v, state=state)
    copy = LinearState(*(x.detach().clone() for x in state))
    stepped, copy = causal_linear_step(q[:, 0], k[:, 0], v[:, 0], copy)
    torch.testing.assert_close(out[:, 0], stepped)
    torch.testing.assert_close(end, copy)
    (ds,) = torch.autograd.grad(out.sum(), state.s)
    assert ds.abs().sum() > 0


def test_the_step_refuses_a_gradient_instead_of_losing_it() -> None:
    q, k, v = (x[:, 0] for x in qkv())
    state = empty_state(2, 2, 16, 16, like=q)
    with pytest.raises(RuntimeError, match="T = 1"):
        causal_linear_step(q.requires_grad_(), k, v, state)
    with torch.no_grad():
        causal_linear_step(q, k, v, state)
    assert state.s.abs().sum() > 0


def test_only_the_gradients_asked_for_are_computed() -> None:
    """A frozen state and no use of the final state: the backward pass gets no zeros to carry."""
    q, k, v = (x.requires_grad_() for x in qkv())
    state = empty_state(2, 2, 16, 16, like=q)
    out, _ = causal_linear_attention(q, k, v, state=state)
    out.sum().backward()
    assert all(x.grad is not None for x in (q, k, v))
    _, end = causal_linear_attention(q, k, v)
    (dk,) = torch.autograd.grad(end.z.sum(), k)
    assert dk.abs().sum() > 0


def test_mixed_types_are_promoted_and_the_output_has_the_type_of_v() -> None:
    q, k, v = qkv()
    out, _ = causal_linear_attention(q.bfloat16(), k, v.bfloat16())
    assert out.dtype == torch.bfloat16
    truth, _ = causal_linear_attention(q.bfloat16().float(), k, v.bfloat16().float())
    torch.testing.assert_close(out, truth.bfloat16())
    stepped, _ = causal_linear_step(
        q[:, 0].bfloat16(), k[:, 0], v[:, 0], empty_state(2, 2, 16, 16, like=k)
    )
    torch.testing.assert_close(
        stepped, causal_linear_attention(q[:, :1].bfloat16(), k[:, :1], v[:, :1])[0][:, 0]
    )


@pytest.mark.parametrize(
    "feature_map", ["elu", "relu", "identity", torch.exp], ids=["elu", "relu", "identity", "exp"]
)
def test_what_lies_beyond_the_length_is_never_used(feature_map: object) -> None:
    lengths = torch.tensor([40, 17])
    results = []
    for filler in (0.0, float("nan")):
        inputs = [x.abs() + 0.1 for x in qkv()]
        for x in inputs:
            x[1, 17:] = filler
            x.requires_grad_()
        out, state = causal_linear_attention(
            *inputs,
            lengths=lengths,
            feature_map=feature_map,  # type: ignore[arg-type]
        )
        grads = torch.autograd.grad((out.square().sum() + state.s.sum()), inputs)
        assert all(not grad[1, 17:].any() for grad in grads)
        results.append([out, *state, *grads])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": draw(2, 2, 8)}, "expected q, k"),
        ({"k": draw(1, 2, 16)}, "expected q, k"),
        ({"v": draw(1, 2, 16)}, "expected q, k"),
        ({"s": draw(1, 1, 1, 1)}, "expected state s"),
        ({"s": draw(1, 2, 16, 16)}, "expected state s"),
        ({"z": draw(1)}, "expected state s"),
        ({"s": draw(2, 2, 16, 16).half()}, "expected a state in torch.float32"),
        ({"z": draw(2, 2, 16).bfloat16()}, "expected a state in torch.float32"),
        ({"s": draw(2, 2, 16, 16).double()}, "expected a state in torch.float32"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_anything_is_written(
    change: dict[str, Tensor], said: str
) -> None:
    parts = {"q": draw(2, 2, 16), "k": draw(2, 2, 16), "v": draw(2, 2, 16)}
    parts |= {"s": draw(2, 2, 16, 16), "z": draw(2, 2, 16).abs()} | change
    before = {name: x.clone() for name, x in parts.items()}
    with pytest.raises(ValueError, match=said):
        causal_linear_step(parts["q"], parts["k"], parts["v"], LinearState(parts["s"], parts["z"]))
    for name, x in parts.items():
        assert torch.equal(x, before[name]), name


def test_no_steps_at_all_give_a_copy_of_the_state_in_its_type() -> None:
    q, k, v = qkv()
    state = empty_state(2, 2, 16, 16, like=q)
    _, end = causal_linear_attention(q[:, :0], k[:, :0], v[:, :0], state=state)
    causal_linear_step(q[:, 0], k[:, 0], v[:, 0], end)
    assert state.s.abs().sum() == 0
    with pytest.raises(ValueError, match="unknown feature map"):
        causal_linear_attention(q[:, :0], k[:, :0], v[:, :0], feature_map="tanh")
    with pytest.raises(ValueError, match="whole lengths"):
        causal_linear_attention(q, k, v, lengths=torch.tensor([1.5, 2.0]))
    with pytest.raises(ValueError, match="real q, k and v"):
        causal_linear_attention(q + 0j, k, v)


def test_wrong_lengths_and_states_are_refused() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"expected whole lengths \[2\]; got torch.int64 \(3,\)"):
        causal_linear_attention(q, k, v, lengths=torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"expected state s \(2, 2, 16, 16\)"):
        causal_linear_attention(q, k, v, state=empty_state(2, 2, 8, 16, like=q))
