"""Suite ``attention``: one stack of layers in its batch form and in its recurrent form.

L pre-norm layers of self-attention (linear or softmax) and feed-forward of 4 D, without
cross-attention. Forms, for ``linear`` and ``softmax``:

- ``_batch_fwd``: all T frames of all utterances at once, without gradients;
- ``_batch_fwdbwd``: the same with the gradients of the inputs and of every parameter;
- ``_recurrent``: the T frames one after the other from an empty state, without gradients: what
  generating T frames costs.

With ``peers=true`` also fast-transformers' ``TransformerEncoderBuilder`` and
``RecurrentEncoderBuilder``, ``fast_transformers_linear`` and ``fast_transformers_softmax`` (which
it calls full). All forms get the same frames of noise. The error is that of the outputs, and of the
inputs' gradients, against the batch form in float64, relative RMS, for the first utterance; the
peers have weights of their own and no error is given.

Shapes: B batch, T frames, L layers, H heads, D width.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from profforce.bench.decode import Stack
from profforce.bench.kernel import relative_rms
from profforce.bench.peers import usable_peers
from profforce.bench.report import Derived, Row, case_names, number, pivot, rounded
from profforce.bench.suite import Case, Form, Suite
from profforce.config import BenchConfig, ModelConfig
from profforce.errors import UserError
from profforce.nn.attention import LinearSelfAttention, SelfAttention, SoftmaxSelfAttention

DEFAULT_SHAPES = ("4x64x4x4x256", "4x256x4x4x256", "4x1024x4x4x256")
SIZES = ("B", "T", "L", "H", "D")
PASSES = ("batch_fwd", "batch_fwdbwd", "recurrent")
KINDS: dict[str, type[SelfAttention]] = {
    "linear": LinearSelfAttention,
    "softmax": SoftmaxSelfAttention,
}
PEER = "fast_transformers"
PEER_KINDS = {f"{PEER}_linear": "linear", f"{PEER}_softmax": "full"}
PEER_BATCH_KINDS = {"linear": "causal-linear", "full": "full"}
CHECKED_FRAMES = 2500
"""Longer cases are not compared with float64, which would take minutes."""

Results = tuple[Tensor, ...]
"""Outputs ``[B, T, D]``, then the inputs' gradients if there was a backward pass."""


class AttentionSuite:
    """Shapes ``BxTxLxHxD``, and the forms above."""

    def cases(self, config: BenchConfig) -> list[Case]:
        """One case a shape."""
        return [parse_shape(text) for text in config.shapes or DEFAULT_SHAPES]

    def warmup_case(self, case: Case) -> Case:
        """The same with one utterance of two frames."""
        return {**case, "B": 1, "T": 2}

    def groups(self, config: BenchConfig, device: torch.device) -> dict[str, list[str]]:
        """The forms of each attention."""
        methods = list(KINDS)
        if config.peers and PEER in usable_peers(config.dtype.value, device):
            methods += PEER_KINDS
        return {method: [f"{method}_{passes}" for passes in PASSES] for method in methods}

    def forms(
        self, names: list[str], case: Case, config: BenchConfig, device: torch.device
    ) -> dict[str, Form]:
        """Ready to run on frames of noise, drawn from ``config.seed``."""
        source = torch.Generator().manual_seed(config.seed)
        shape, dtype = (case["B"], case["T"], case["D"]), getattr(torch, config.dtype.value)
        x, grad = (torch.randn(shape, generator=source).to(device, dtype) for _ in range(2))
        x.requires_grad_()
        made: dict[str, Form] = {}
        for name in names:
            method = next(m for m in (*KINDS, *PEER_KINDS) if name.startswith(f"{m}_"))
            passes = name.removeprefix(f"{method}_")
            torch.manual_seed(config.seed)
            if method in PEER_KINDS:
                made[name] = Form(_peer(PEER_KINDS[method], passes, x, grad, case))
            else:
                made[name] = _own(KINDS[method], passes, x, grad, case)
        return made

    def derive(self, rows: Sequence[Row], config: BenchConfig) -> Derived:
        """Time and memory an utterance, since the forms are at their best in different batches."""
        data: list[dict[str, Any]] = []
        cells = []
        for row in rows:
            time = row.ms_median / row.case["B"]
            memory = None if row.peak_mib is None else row.peak_mib / row.case["B"]
            cells.append(number(time) + ("" if memory is None else f", {number(memory)}"))
            record = {"case": row.case, "form": row.form}
            data.append({**record, "ms": rounded(time), "mib": rounded(memory)})
        return Derived(
            title="Milliseconds and MiB an utterance",
            columns=("form", *case_names(rows)),
            lines=pivot(rows, cells),
            data={"an_utterance": data},
        )


SUITE: Suite = AttentionSuite()


def parse_shape(text: str) -> Case:
    """``"8x500x4x8x512"`` to ``{"B": 8, "T": 500, "L": 4, "H": 8, "D": 512}``.

    Raises:
        UserError: if that is no shape, or its heads do not divide its width.
    """
    expected = "BxTxLxHxD: batch, frames, layers, heads, width, such as shapes=[8x500x4x8x512]"
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){4}", text):
        raise UserError(f"'{text}' is no shape", where="shapes", expected=expected)
    case = dict(zip(SIZES, map(int, text.split("x")), strict=True))
    if case["D"] % case["H"] or case["D"] % 2:
        raise UserError(
            f"'{text}' has heads of no whole width",
            where="shapes",
            got=f"{case['H']} heads, D={case['D']}",
            expected="an even multiple of the heads as D",
        )
    return case


def _own(kind: type[SelfAttention], passes: str, x: Tensor, grad: Tensor, case: Case) -> Form:
    config = ModelConfig(
        width=case["D"],
        num_heads=case["H"],
        decoder_layers=case["L"],
        feedforward_width=4 * case["D"],
        guided_layers=1,
        guided_heads=1,
    )
    stack = Stack(kind, config).to(x.device, x.dtype).eval()

    def error() -> float:
        exact = Stack(kind, config).to(x.device, torch.float64).eval()
        exact.load_state_dict({key: value.double() for key, value in stack.state_dict().items()})
        wide = x[:1].detach().double().requires_grad_()
        truth = _backward(exact, wide, grad[:1].double())
        found = _runner(stack, passes, x[:1].detach().requires_grad_(), grad[:1])()
        pairs = zip(found, truth[: len(found)], strict=True)
        return max(relative_rms(ours, wanted) for ours, wanted in pairs)

    check = error if case["T"] <= CHECKED_FRAMES else None
    return Form(_runner(stack, passes, x, grad), error=check)


def _runner(stack: Stack, passes: str, x: Tensor, grad: Tensor) -> Callable[[], Results]:
    if passes == "batch_fwdbwd":
        return lambda: _backward(stack, x, grad)
    return lambda: (_forward(stack, x) if passes == "batch_fwd" else _generate(stack, x),)


@torch.no_grad()
def _forward(stack: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = stack(x)
    return out


def _backward(stack: nn.Module, x: Tensor, grad: Tensor) -> Results:
    """Outputs and the inputs' gradients; those of the parameters are computed too."""
    out = stack(x)
    grads = torch.autograd.grad(out, [x, *stack.parameters()], grad)
    return out.detach(), grads[0]


@torch.no_grad()
def _generate(stack: Stack, x: Tensor) -> Tensor:
    """The frames ``x [B, T, D]`` one by one, from an empty state."""
    out, (batch, frames) = torch.empty_like(x), x.shape[:2]
    states = [layer.init_state(batch, frames, x) for layer in stack.attention]  # type: ignore[operator]
    for t in range(frames):
        out[:, t] = stack.step(x[:, t], states, t)
    return out


def _peer(kind: str, passes: str, x: Tensor, grad: Tensor, case: Case) -> Callable[[], object]:
    """fast-transformers' encoder of the same sizes."""
    from fast_transformers.builders import RecurrentEncoderBuilder, TransformerEncoderBuilder
    from fast_transformers.masking import TriangularCausalMask

    batch = passes != "recurrent"
    builder = TransformerEncoderBuilder if batch else RecurrentEncoderBuilder
    model = builder.from_kwargs(
        attention_type=PEER_BATCH_KINDS[kind] if batch else kind,
        n_layers=case["L"],
        n_heads=case["H"],
        feed_forward_dimensions=4 * case["D"],
        query_dimensions=case["D"] // case["H"],
        value_dimensions=case["D"] // case["H"],
        dropout=0.0,
    ).get()
    model = model.to(x.device, x.dtype).eval()
    if not batch:
        return lambda: _generate_by_peer(model, x)
    mask = TriangularCausalMask(case["T"], device=x.device)
    masked = _Masked(model, mask)
    if passes == "batch_fwdbwd":
        return lambda: _backward(masked, x, grad)
    return lambda: _forward(masked, x)


class _Masked(nn.Module):
    """An encoder that is given its causal mask."""

    def __init__(self, model: nn.Module, mask: Any) -> None:
        super().__init__()
        self.model, self.mask = model, mask

    def forward(self, x: Tensor) -> Tensor:
        """``x [B, T, D]`` -> ``[B, T, D]``."""
        out: Tensor = self.model(x, attn_mask=self.mask)
        return out


@torch.no_grad()
def _generate_by_peer(model: nn.Module, x: Tensor) -> Tensor:
    out, state = torch.empty_like(x), None
    for t in range(x.shape[1]):
        out[:, t], state = model(x[:, t], state)
    return out
