"""Causal linear attention: the public functions, their autograd, and the choice of a kernel.

The operators are registered with PyTorch (``torch.ops.profforce``), with fake kernels and
gradients, so that ``torch.compile``, AMP, activation checkpointing and ``torch.func`` see through
them. Which implementation runs is chosen for every call from device, type and widths alone.

Shapes: B batch, T time, H heads, K key width, V value width.
"""

from typing import Any, cast

import torch
from torch import Tensor

from profforce.kernels.dispatch import describe, implementation, run_step
from profforce.kernels.state import (
    FEATURE_MAPS,
    FeatureMapFn,
    LinearInputs,
    LinearState,
    accumulation_dtype,
    empty_state,
    resolve_feature_map,
)

__all__ = ["causal_linear_attention", "causal_linear_step", "describe"]


def causal_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    state: LinearState | None = None,
    feature_map: str | FeatureMapFn = "elu",
) -> tuple[Tensor, LinearState]:
    """Causal attention with a kernel feature map (Katharopoulos et al. 2020, eq. 8-12).

    ``out_t = phi(q_t) S_t / (phi(q_t) . z_t + eps)`` with ``S_t = sum_{j<=t} phi(k_j) v_j^T``.
    Inside a chunk the scores are formed; between chunks only the state is carried. The backward
    pass computes the forward pass anew: nothing but the inputs is kept.

    Args:
        q: queries ``[B, T, H, K]``, of any strides.
        k: keys ``[B, T, H, K]``.
        v: values ``[B, T, H, V]``.
        lengths: valid steps ``[B]``, 0 allowed. Keys beyond are masked after the feature map and
            outputs beyond are exactly zero, so the final state is the state at ``lengths``; what
            q, k and v hold there is never used, NaN included.
        state: sums from an earlier part of the sequence; splitting and resuming equals the whole.
        feature_map: a name of ``FEATURE_MAPS``, fused into the kernels, or any elementwise or
            rowwise callable, applied by PyTorch.

    Returns:
        ``(out [B, T, H, V] in v's type, final state in the accumulation type)``, differentiable
        once with respect to q, k, v and the state. Float16 and bfloat16 are summed in float32.

    Raises:
        ValueError: if the shapes do not fit together or the feature map is unknown.
    """
    _check_shapes(q, k, v, lengths, state)
    name = _name_of(feature_map)
    common = _common_type(q, k, v)
    if q.shape[1] == 0:
        batch, _, heads, width = q.shape
        state = state or empty_state(batch, heads, width, v.shape[-1], like=q)
        return v, LinearState(*(x.to(accumulation_dtype(common), copy=True) for x in state))
    if lengths is not None:
        lengths = lengths.to(q.device, torch.int64)
    if name is None:  # padding may be NaN, and a callable's gradient would spread it
        q, k = _clean(q, lengths), _clean(k, lengths)
        phi = resolve_feature_map(feature_map)
        wide = accumulation_dtype(q.dtype)
        q, k, name = phi(q.to(wide)), phi(k.to(wide)), "identity"
        common = torch.promote_types(wide, v.dtype)
    s0, z0 = (None, None) if state is None else (x.to(accumulation_dtype(common)) for x in state)
    apply = causal_linear_op if torch.compiler.is_compiling() else _CausalLinear.apply
    out, s1, z1 = apply(q.to(common), k.to(common), v.to(common), lengths, s0, z0, name)
    return out.to(v.dtype), LinearState(s1, z1)


def causal_linear_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState,
    *,
    feature_map: str | FeatureMapFn = "elu",
) -> tuple[Tensor, LinearState]:
    """One step of :func:`causal_linear_attention`, updating ``state`` in place.

    Args:
        q: query ``[B, H, K]``.
        k: key ``[B, H, K]``.
        v: value ``[B, H, V]``.
        state: contiguous; updated in place, so that its storage stays fixed.

    Returns:
        ``(out [B, H, V] in v's type, the same state)``.

    Raises:
        RuntimeError: if a gradient is asked for; :func:`causal_linear_attention` over one step has
            one.
        ValueError: if the shapes or types do not fit together or the feature map is unknown.
    """
    common = _common_type(q, k, v)
    _check_step(q, k, v, state, accumulation_dtype(common))
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *state)):
        raise RuntimeError(
            "causal_linear_step works in place and has no gradient; call it under torch.no_grad(), "
            "or causal_linear_attention with T = 1"
        )
    name = _name_of(feature_map)
    if name is None:
        phi = resolve_feature_map(feature_map)
        q, k, name = phi(q.to(state.s.dtype)), phi(k.to(state.s.dtype)), "identity"
        common = _common_type(q, k, v)
    if not q.dtype == k.dtype == v.dtype:
        out = _step(q.to(common), k.to(common), v.to(common), state, name).to(v.dtype)
    else:
        out = _step(q, k, v, state, name)
    return out, state


# ------------------------------------------------------------------ operators


@torch.library.custom_op("profforce::causal_linear", mutates_args=())
def causal_linear_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    feature_map: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(out, s1, z1)`` of one type of q, k and v; T at least 1."""
    x = _inputs(q, k, v, lengths, s, z, feature_map)
    with torch.autocast(q.device.type, enabled=False):  # what is summed in float32 stays so
        return implementation(q, v).forward(x)


@causal_linear_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    feature_map: str,
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    return out, *LinearInputs(q, k, v, lengths, s, z, feature_map).new_state()


@torch.library.custom_op("profforce::causal_linear_backward", mutates_args=())
def causal_linear_backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    feature_map: str,
    grad_out: Tensor | None,
    grad_s1: Tensor | None,
    grad_z1: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to ``q, k, v, s, z``."""
    x = _inputs(q, k, v, lengths, s, z, feature_map)
    grads = (grad_out, _contiguous(grad_s1), _contiguous(grad_z1))
    with torch.autocast(q.device.type, enabled=False):
        return implementation(q, v).backward(x, *grads)


@causal_linear_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    feature_map: str,
    grad_out: Tensor | None,
    grad_s1: Tensor | None,
    grad_z1: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grads = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    grad_q, grad_k, grad_v = grads
    state = LinearInputs(q, k, v, lengths, s, z, feature_map).new_state()
    return grad_q, grad_k, grad_v, *state


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.feature_map = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, lengths, s, z = ctx.saved_tensors
    if all(grad is None for grad in grads):
        return (None,) * 7
    inputs = (q, k, v, lengths, s, z, ctx.feature_map, *grads)
    dq, dk, dv, ds, dz = _CausalLinearBackward.apply(*inputs)
    return dq, dk, dv, None, None if s is None else ds, None if z is None else dz, None


causal_linear_op.register_autograd(_gradients, setup_context=_keep_inputs)


class _CausalLinearBackward(torch.autograd.Function):
    """The gradients, which have none themselves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return cast(tuple[Tensor, ...], causal_linear_backward_op(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("causal_linear_attention is differentiable once, not twice")


class _CausalLinear(torch.autograd.Function):
    """The operator for ``torch.func``, whose transforms do not see an operator's own gradient.

    ``torch.compile`` sees that one, and not through this class.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor, Tensor], causal_linear_op(*inputs))

    setup_context = staticmethod(_keep_inputs)
    backward = staticmethod(_gradients)


def _over_batch(op: Any) -> Any:
    """The rule of ``vmap``: its dimension joins the batch, since utterances are independent."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        outputs = op(*map(fold, inputs, in_dims))
        unfolded = tuple(y.unflatten(0, (info.batch_size, -1)) for y in outputs)
        return unfolded, (0,) * len(unfolded)

    return rule


causal_linear_op.register_vmap(_over_batch(causal_linear_op))
causal_linear_backward_op.register_vmap(_over_batch(causal_linear_backward_op))


@torch.library.custom_op("profforce::causal_linear_step", mutates_args=("s", "z"))
def causal_linear_step_op(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor, feature_map: str
) -> Tensor:
    """The recurrent step, for ``torch.compile``; s and z are updated in place."""
    return run_step(q, k, v, LinearState(s, z), feature_map)


@causal_linear_step_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, s: Tensor, z: Tensor, feature_map: str) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


def _step(q: Tensor, k: Tensor, v: Tensor, state: LinearState, feature_map: str) -> Tensor:
    if torch.compiler.is_compiling():
        return cast(Tensor, causal_linear_step_op(q, k, v, *state, feature_map))
    return run_step(q, k, v, state, feature_map)  # the operator's wrapping would cost 6 us a step


def _name_of(feature_map: str | FeatureMapFn) -> str | None:
    """The name of a fused map; None for a callable that is none of them."""
    if isinstance(feature_map, str):
        resolve_feature_map(feature_map)
        return feature_map
    return next((name for name, phi in FEATURE_MAPS.items() if phi is feature_map), None)


def _clean(x: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(beyond[:, :, None, None], 0)


def _inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    feature_map: str,
) -> LinearInputs:
    return LinearInputs(q, k, v, _contiguous(lengths), _contiguous(s), _contiguous(z), feature_map)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _common_type(q: Tensor, k: Tensor, v: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)


def _check_step(q: Tensor, k: Tensor, v: Tensor, state: LinearState, wanted: torch.dtype) -> None:
    """Shapes and types, since kernels that write in place trust them."""
    if q.dim() != 3 or k.shape != q.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            "expected q, k [B, H, K] and v [B, H, V]; got "
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    _check_state(state, (*q.shape, v.shape[-1]))
    if state.s.dtype != wanted or state.z.dtype != wanted:
        raise ValueError(
            f"expected a state in {wanted} for inputs in {_common_type(q, k, v)}; got "
            f"s {state.s.dtype}, z {state.z.dtype}"
        )


def _check_shapes(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, state: LinearState | None
) -> None:
    if q.dim() != 4 or q.shape != k.shape or v.dim() != 4 or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            "expected q, k [B, T, H, K] and v [B, T, H, V]; got "
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    batch, _, heads, key_width = q.shape
    if lengths is not None and (lengths.shape != (batch,) or lengths.is_floating_point()):
        raise ValueError(
            f"expected whole lengths [{batch}]; got {lengths.dtype} {tuple(lengths.shape)}"
        )
    if any(x.is_complex() for x in (q, k, v)):
        raise ValueError("complex numbers have no causal order of features; give real q, k and v")
    if state is not None:
        _check_state(state, (batch, heads, key_width, v.shape[-1]))


def _check_state(state: LinearState, expected: tuple[int, ...]) -> None:
    if state.s.shape != expected or state.z.shape != expected[:3]:
        raise ValueError(
            f"expected state s {expected} and z {expected[:3]}; got "
            f"s {tuple(state.s.shape)}, z {tuple(state.z.shape)}"
        )
