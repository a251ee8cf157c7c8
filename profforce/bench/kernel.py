"""Suite ``kernel``: causal attention alone, forward and with its backward pass.

Forms, each as ``NAME_fwd`` (no gradients) and ``NAME_fwdbwd`` (gradients of q, k and v):

- ``ours``: :func:`profforce.kernels.ops.causal_linear_attention`;
- ``chunked``: the same mathematics in plain PyTorch, differentiated by autograd;
- ``sdpa``: softmax attention by ``torch.nn.functional.scaled_dot_product_attention``;
- ``fast_transformers``, ``fla``: other people's linear attention, with ``peers=true``;
- ``gemm_1024``: a float32 matrix product of 1024 x 1024 x 1024, the machine's own speed.

Floating-point operations are those that no method can do without, not those that a form spends.
Linear attention: state and readout, ``4 B H T K^2`` forward, twice that backward. Softmax: the
lower triangle of two products forward, ``2 B H T^2 K``, of five backward. Maps, exponentials and
normalisers are not counted.

The error is the root mean square of the difference from float64 relative to that of float64 itself:
of the output for ``_fwd``, the largest among output and the three gradients for ``_fwdbwd``; of the
first eight utterances, since float64 takes its time. Each form is compared with the function that
it computes, linear or softmax attention.

Shapes: B batch, T time, H heads, K width of keys and values.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.bench.peers import PEERS, Attend, usable_peers
from profforce.bench.plain import plain_chunked_attention
from profforce.bench.suite import Case, Form, Suite
from profforce.config import BenchConfig
from profforce.errors import UserError
from profforce.kernels.ops import causal_linear_attention

DEFAULT_SHAPES = ("8x4x500x32", "8x8x1000x64", "4x8x2000x64", "1x8x8000x64")
SIZES = ("B", "H", "T", "K")
GEMM = "gemm_1024"
GEMM_SIZE = 1024
CHECKED_UTTERANCES = 8

Results = tuple[Tensor, ...]
"""The output, and the gradients of q, k and v if there was a backward pass."""


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The product's form."""
    return causal_linear_attention(q, k, v)[0]


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own causal attention."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


FORMS: dict[str, Attend] = {"ours": ours, "chunked": plain_chunked_attention, "sdpa": softmax}


class KernelSuite:
    """Shapes ``BxHxTxK``, and the forms above."""

    def cases(self, config: BenchConfig) -> list[Case]:
        """One case a shape."""
        return [parse_shape(text) for text in config.shapes or DEFAULT_SHAPES]

    def warmup_case(self, case: Case) -> Case:
        """The same with one utterance of two steps."""
        return {**case, "B": 1, "T": 2}

    def groups(self, config: BenchConfig, device: torch.device) -> dict[str, list[str]]:
        """``{"ours": ["ours_fwd", "ours_fwdbwd"], ...}``."""
        peers = usable_peers(config.dtype.value, device) if config.peers else []
        names = [*FORMS, *peers]
        return {GEMM: [GEMM], **{name: [f"{name}_fwd", f"{name}_fwdbwd"] for name in names}}

    def forms(
        self, names: list[str], case: Case, config: BenchConfig, device: torch.device
    ) -> dict[str, Form]:
        """Ready to run on normal random inputs, drawn from ``config.seed``."""
        inputs = Inputs.draw(case, config, device)
        truth = cache(partial(reference, inputs))
        made: dict[str, Form] = {}
        for name in names:
            if name == GEMM:
                made[name] = _gemm(device, config.seed)
                continue
            method, _, passes = name.rpartition("_")
            attend = PEERS[method].build(case, device) if method in PEERS else FORMS[method]
            run = partial(attention, attend, inputs, backward=passes == "fwdbwd")
            kind = softmax if method == "sdpa" else plain_chunked_attention
            made[name] = Form(run, flops(name, case), partial(_error, run, truth, kind))
        return made


SUITE: Suite = KernelSuite()


def parse_shape(text: str) -> Case:
    """``"8x4x500x32"`` to ``{"B": 8, "H": 4, "T": 500, "K": 32}``.

    Raises:
        UserError: if that is no shape.
    """
    numbers = re.findall(r"\d+", text)
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){3}", text):
        return dict(zip(SIZES, map(int, numbers), strict=True))
    near = "x".join(numbers)
    guess = len(numbers) == len(SIZES) and near != text and "0" not in numbers
    raise UserError(
        f"'{text}' is no shape" + (f"; did you mean '{near}'?" if guess else ""),
        where="shapes",
        expected="BxHxTxK: batch, heads, time and head width, such as shapes=[8x4x500x32]",
    )


@dataclass(frozen=True)
class Inputs:
    """What every form of a case is given, ``[B, T, H, K]`` each."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    """Gradient of the output."""

    @staticmethod
    def draw(case: Case, config: BenchConfig, device: torch.device) -> "Inputs":
        """Normal noise, the same for every form, device and type."""
        source = torch.Generator().manual_seed(config.seed)
        shape = (case["B"], case["T"], case["H"], case["K"])
        dtype = getattr(torch, config.dtype.value)
        q, k, v, grad = (torch.randn(shape, generator=source).to(device, dtype) for _ in range(4))
        return Inputs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)


def attention(attend: Attend, inputs: Inputs, *, backward: bool) -> Results:
    """One call, with the gradients of q, k and v or without any."""
    q, k, v = inputs.q, inputs.k, inputs.v
    if not backward:
        with torch.no_grad():
            return (attend(q, k, v),)
    out = attend(q, k, v)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), inputs.grad)


def reference(inputs: Inputs, attend: Attend) -> Results:
    """Output and gradients of the first utterances in float64, each alone to save memory."""
    parts = []
    for b in range(min(CHECKED_UTTERANCES, inputs.q.shape[0])):
        q, k, v = (x[b : b + 1].detach().double() for x in (inputs.q, inputs.k, inputs.v))
        grad = inputs.grad[b : b + 1].double()
        wide = Inputs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad)
        parts.append(attention(attend, wide, backward=True))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def relative_rms(result: Tensor, truth: Tensor) -> float:
    """Root mean square of the difference over that of ``truth``."""
    difference = (result.double() - truth).square().mean().sqrt()
    return float(difference / truth.square().mean().sqrt())


def flops(name: str, case: Case) -> float:
    """Operations that one call cannot do without; the module's text says which are counted."""
    batch, heads, steps, width = (case[size] for size in SIZES)
    backward = name.endswith("_fwdbwd")
    if name.startswith("sdpa"):
        return batch * heads * steps**2 * width * (2 + 5 * backward)
    return 4 * batch * heads * steps * width**2 * (1 + 2 * backward)


def _error(run: Callable[[], Results], truth: Callable[[Attend], Results], kind: Attend) -> float:
    results = run()
    pairs = zip(results, truth(kind)[: len(results)], strict=True)
    return max(relative_rms(result[: len(wanted)], wanted) for result, wanted in pairs)


def _gemm(device: torch.device, seed: int) -> Form:
    source = torch.Generator().manual_seed(seed)
    shape = (GEMM_SIZE, GEMM_SIZE)
    a, b = (torch.randn(shape, generator=source).to(device) for _ in range(2))
    return Form(
        run=lambda: torch.matmul(a, b),
        flops=2.0 * GEMM_SIZE**3,
        error=lambda: relative_rms(torch.matmul(a, b), a.double() @ b.double()),
    )
