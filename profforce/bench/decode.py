"""Suite ``decode``: one step of a decoder that has made T frames already.

A stack of L pre-norm layers (self-attention, feed-forward of 4 D), without cross-attention, since
that costs all forms the same. Forms:

- ``linear``: recurrent linear attention, state of constant size, stepped through the modules;
- ``softmax``: softmax attention with a preallocated cache of keys and values, likewise;
- ``engine_linear``, ``engine_softmax``: the same by the free-run engine of the CPU, and
  ``engine_linear_bfloat16``, ``engine_linear_int8`` with weights of that precision;
- ``prefix``: linear attention that runs its parallel form over the T frames again for every new
  one, as a model without a recurrent form has to;
- ``fast_transformers_linear``, ``fast_transformers_full``: the same stack built by its
  ``RecurrentEncoderBuilder``, with ``peers=true``.

A call is one step for all B utterances; frames a second are ``B / time``. The error is that of the
step against the parallel form over all T + 1 frames in float64, relative RMS; the peers have
weights of their own and no error is given.

Shapes: B batch, T frames before the step, D width, H heads, L layers.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.bench.peers import usable_peers
from profforce.bench.suite import Case, Form, Suite
from profforce.config import BenchConfig, BenchDtype, ModelConfig
from profforce.errors import UserError
from profforce.kernels import free_run
from profforce.kernels.free_run import PLACES_MULTIPLE, FreeRunner, PackedLinear, Program
from profforce.kernels.ops import causal_linear_attention
from profforce.nn.attention import LinearSelfAttention, SelfAttention, SoftmaxSelfAttention

ENGINE = {
    "engine_linear": "float32",
    "engine_linear_bfloat16": "bfloat16",
    "engine_linear_int8": "int8",
    "engine_softmax": "float32",
}
"""Forms of the free-run engine, each with the precision of its weights."""
DEFAULT_SHAPES = ("1x500", "32x500", "128x500", "1x100", "1x20000")
WIDTH, HEADS, LAYERS = 512, 8, 4
CHECKED_FRAMES = 600
"""Longer cases are not compared with float64: their prefix would take minutes."""
RERUN_FRAMES = 2000
"""More frames of all utterances together are not run again: one step would take seconds."""


class Stack(nn.Module):
    """Layers with a parallel form and a step form on the same weights."""

    def __init__(self, kind: type[SelfAttention], config: ModelConfig) -> None:
        super().__init__()
        make = cast(Callable[[ModelConfig], SelfAttention], kind)
        count = config.decoder_layers
        self.attention = nn.ModuleList(make(config) for _ in range(count))
        self.norm1 = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(count))
        self.norm2 = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(count))
        self.into = nn.ModuleList(
            nn.Linear(config.width, config.feedforward_width) for _ in range(count)
        )
        self.out = nn.ModuleList(
            nn.Linear(config.feedforward_width, config.width) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x [B, T, D]`` -> ``[B, T, D]``."""
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        for i, attend in enumerate(self.attention):
            x = x + attend(self.norm1[i](x), lengths)
            x = x + self._feed(i, x)
        return x

    def step(self, x: Tensor, states: list[Any], t: int) -> Tensor:
        """``x [B, D]`` after ``t`` frames; the states are those of the layers."""
        for i, attend in enumerate(self.attention):
            y, states[i] = cast(SelfAttention, attend).step(self.norm1[i](x), states[i], t)
            x = x + y
            x = x + self._feed(i, x)
        return x

    def _feed(self, i: int, x: Tensor) -> Tensor:
        y: Tensor = self.out[i](F.relu(self.into[i](self.norm2[i](x))))
        return y

    def states_after(self, x: Tensor) -> list[Any]:
        """States of the layers after ``x [B, T, D]``, from the parallel form."""
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        states = []
        for i, layer in enumerate(self.attention):
            attend = cast(LinearSelfAttention | SoftmaxSelfAttention, layer)
            y = self.norm1[i](x)
            q, k, v = attend.qkv(y).unflatten(-1, (3, attend.num_heads, -1)).unbind(2)
            state: Any
            if isinstance(attend, LinearSelfAttention):
                _, state = causal_linear_attention(q, k, v)
            else:
                state = attend.init_state(len(x), x.shape[1] + 1, x)
                state.k[:, :, :-1], state.v[:, :, :-1] = k.transpose(1, 2), v.transpose(1, 2)
            states.append(state)
            x = x + attend(y, lengths)
            x = x + self._feed(i, x)
        return states


class DecodeSuite:
    """Shapes ``BxT``, and the forms above."""

    def cases(self, config: BenchConfig) -> list[Case]:
        """One case a shape."""
        return [parse_shape(text) for text in config.shapes or DEFAULT_SHAPES]

    def warmup_case(self, case: Case) -> Case:
        """The same after a single frame."""
        return {**case, "B": 1, "T": 1}

    def groups(self, config: BenchConfig, device: torch.device) -> dict[str, list[str]]:
        """Each form by itself."""
        names = ["linear", "softmax", "prefix"]
        if device.type == "cpu" and config.dtype is BenchDtype.float32 and free_run.is_available():
            names = [*ENGINE, *names]
        if config.peers and "fast_transformers" in usable_peers(config.dtype.value, device):
            names += ["fast_transformers_linear", "fast_transformers_full"]
        return {name: [name] for name in names}

    def forms(
        self, names: list[str], case: Case, config: BenchConfig, device: torch.device
    ) -> dict[str, Form]:
        """Ready to take the step after T frames of noise, again and again from the same place."""
        torch.manual_seed(config.seed)
        dtype = getattr(torch, config.dtype.value)
        x = torch.randn(case["B"], case["T"] + 1, case["D"]).to(device, dtype)
        made: dict[str, Form] = {}
        for name in names:
            if name in ENGINE:
                made[name] = _own(name, x, case, config.seed)
            elif name.startswith("fast_transformers"):
                made[name] = Form(_peer(name.rpartition("_")[2], x, case))
            elif name != "prefix" or case["B"] * case["T"] <= RERUN_FRAMES:
                made[name] = _own(name, x, case, config.seed)
        return made


SUITE: Suite = DecodeSuite()


def parse_shape(text: str) -> Case:
    """``"32x500"`` to ``{"B": 32, "T": 500, "D": 512, "H": 8, "L": 4}``.

    Raises:
        UserError: if that is no shape.
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise UserError(
            f"'{text}' is no shape",
            where="shapes",
            expected="BxT: batch and frames before the step, such as shapes=[32x500]",
        )
    batch, frames = map(int, text.split("x"))
    return {"B": batch, "T": frames, "D": WIDTH, "H": HEADS, "L": LAYERS}


def _own(name: str, x: Tensor, case: Case, seed: int) -> Form:
    kind = SoftmaxSelfAttention if name.endswith("softmax") else LinearSelfAttention
    torch.manual_seed(seed)
    config = ModelConfig(
        width=case["D"],
        num_heads=case["H"],
        decoder_layers=case["L"],
        feedforward_width=4 * case["D"],
    )
    stack = Stack(kind, config).to(x.device, x.dtype).eval()
    make: Callable[[Stack, Tensor], Callable[[], Tensor]]
    if name in ENGINE:
        make = partial(_engine, precision=ENGINE[name])
    else:
        make = _rerun if name == "prefix" else _step
    run = make(stack, x)

    @torch.no_grad()
    def error() -> float:
        count = min(len(x), 2)
        exact = Stack(kind, config).to(x.device, torch.float64).eval()
        exact.load_state_dict({key: value.double() for key, value in stack.state_dict().items()})
        truth = exact(x[:count].double())[:, -1]
        ours = make(stack, x[:count])().double()
        return float((ours - truth).square().mean().sqrt() / truth.square().mean().sqrt())

    return Form(run, error=error if case["T"] <= CHECKED_FRAMES else None)


@torch.no_grad()
def _step(stack: Stack, x: Tensor) -> Callable[[], Tensor]:
    frames, last = x.shape[1] - 1, x[:, -1].contiguous()
    states = stack.states_after(x[:, :-1])

    @torch.no_grad()
    def run() -> Tensor:
        return stack.step(last, states, frames)

    return run


@torch.no_grad()
def _engine(stack: Stack, x: Tensor, precision: str) -> Callable[[], Tensor]:
    """The same step as a program, which starts from the same rows and memories every time."""
    frames, last = x.shape[1] - 1, x[:, -1].contiguous()
    program, rows, normed = Program(), last.clone(), torch.empty_like(last)
    read, qkv = torch.empty_like(last), torch.empty(len(x), 3 * x.shape[2])

    def linear(source: Tensor, layer: nn.Module, to: Tensor, **how: Any) -> None:
        assert isinstance(layer, nn.Linear)
        program.linear(source, PackedLinear(layer.weight, layer.bias, precision), to, **how)

    def norm(layer: nn.Module) -> None:
        assert isinstance(layer, nn.LayerNorm)
        program.norm(rows, layer.weight, layer.bias, layer.eps, normed)

    for i, state in enumerate(stack.states_after(x[:, :-1])):
        attention = cast(LinearSelfAttention | SoftmaxSelfAttention, stack.attention[i])
        inner = torch.empty(len(x), cast(nn.Linear, stack.into[i]).out_features)
        norm(stack.norm1[i])
        linear(normed, attention.qkv, qkv)
        if isinstance(attention, LinearSelfAttention):
            program.linear_attention(qkv, state, attention.feature_map, read)
        else:
            places = -(-(frames + 1) // PLACES_MULTIPLE) * PLACES_MULTIPLE
            spare = places - frames - 1
            keys, values = (
                F.pad(state.k.transpose(2, 3), (0, spare)),
                F.pad(state.v, (0, 0, 0, spare)),
            )
            program.attention(qkv, keys.contiguous(), values.contiguous(), read)
        linear(read, attention.out, rows, add=True)
        norm(stack.norm2[i])
        linear(normed, stack.into[i], inner, activation="relu")
        linear(inner, stack.out[i], rows, add=True)
    runner = FreeRunner(program, torch.arange(len(x)), [len(x)], max_steps=frames + 1)

    def run() -> Tensor:
        rows.copy_(last)
        runner.seek(frames)
        runner.advance(1)
        return rows

    return run


def _rerun(stack: Stack, x: Tensor) -> Callable[[], Tensor]:
    @torch.no_grad()
    def run() -> Tensor:
        out: Tensor = stack(x)[:, -1]
        return out

    return run


@torch.no_grad()
def _peer(kind: str, x: Tensor, case: Case) -> Callable[[], object]:
    """The recurrent encoder of fast-transformers after as many frames as a step needs.

    Its linear state does not grow, so one frame stands for T; its full attention keeps a cache that
    is filled here.
    """
    from fast_transformers.builders import RecurrentEncoderBuilder

    width = case["D"] // case["H"]
    model = RecurrentEncoderBuilder.from_kwargs(
        attention_type=kind,
        n_layers=case["L"],
        n_heads=case["H"],
        feed_forward_dimensions=4 * case["D"],
        query_dimensions=width,
        value_dimensions=width,
    ).get()
    model = model.to(x.device, x.dtype).eval()
    _, state = model(x[:, 0])
    if kind == "full":
        shape = (len(x), case["H"], case["T"], width)
        keys = torch.randn(2, *shape, device=x.device, dtype=x.dtype)
        state = [[keys[0], keys[1]] for _ in state]
    last = x[:, -1].contiguous()

    @torch.no_grad()
    def run() -> object:
        return model(last, list(state))  # it puts the new states into the list

    return run
