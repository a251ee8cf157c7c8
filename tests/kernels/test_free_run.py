"""The operations of free-run programs, each against PyTorch, in every build that runs here."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from profforce.errors import UserError
from profforce.kernels import native
from profforce.kernels.build import variants
from profforce.kernels.free_run import (
    FreeRunner,
    Location,
    PackedLinear,
    Program,
    Walk,
    is_available,
    is_fast,
)
from profforce.kernels.ops import causal_linear_step
from profforce.kernels.state import empty_state
from profforce.nn.noise import PrenetNoise

TOLERANCE = {"float32": 2e-6, "bfloat16": 8e-3, "int8": 2e-2}
"""Root mean square relative to the result's."""


@pytest.fixture(params=[variant.name for variant in variants()])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(native.OVERRIDE, request.param)
    try:
        if not is_available():
            pytest.skip(native.why_not())
    except UserError as err:
        pytest.skip(str(err))
    yield request.param


def run(program: Program, rows: int, steps: int = 1) -> None:
    FreeRunner(program, torch.arange(rows), [rows], max_steps=steps).advance(steps)


def relative(ours: Tensor, truth: Tensor) -> float:
    return float((ours - truth).square().mean().sqrt() / truth.square().mean().sqrt())


@pytest.mark.parametrize("precision", sorted(TOLERANCE))
@pytest.mark.parametrize(
    ("rows", "k", "n"), [(1, 16, 32), (13, 7, 5), (12, 64, 96), (25, 129, 33), (3, 1, 1)]
)
def test_linear(build: str, precision: str, rows: int, k: int, n: int) -> None:
    torch.manual_seed(rows + k)
    layer, x, y = nn.Linear(k, n), torch.randn(rows, k), torch.full((rows, n), 7.0)
    program = Program()
    program.linear(x, PackedLinear(layer.weight, layer.bias, precision), y)
    run(program, rows)
    assert relative(y, layer(x).detach()) < TOLERANCE[precision]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_activation_gate_and_sum(build: str, activation: str) -> None:
    torch.manual_seed(0)
    x, y = 3 * torch.randn(5, 8), torch.randn(5, 40)
    layer, gate = nn.Linear(8, 40, bias=False), torch.tensor(0.3)
    call = torch.tanh if activation == "tanh" else getattr(F, activation)
    expected = y + 0.3 * call(layer(x)).detach()
    program = Program()
    packed = PackedLinear(layer.weight, None)
    program.linear(x, packed, y, activation=activation, add=True, gate=gate)
    run(program, 5)
    torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)


def test_zero_weights_and_rows_in_int8(build: str) -> None:
    y = torch.ones(2, 3)
    program = Program()
    program.linear(torch.zeros(2, 4), PackedLinear(torch.zeros(3, 4), None, "int8"), y)
    run(program, 2)
    assert y.abs().sum() == 0


def test_every_build_gives_the_same_int8_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's own instruction and the arithmetic that stands in for it."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(40, 50), torch.randn(40), torch.randn(6, 50)
    results, fast = [], []
    for variant in variants():
        monkeypatch.setenv(native.OVERRIDE, variant.name)
        try:
            if not is_available():
                continue
        except UserError:
            continue
        y, program = torch.empty(6, 40), Program()
        program.linear(x, PackedLinear(weight, bias, "int8"), y)
        run(program, 6)
        results.append(y)
        fast.append(is_fast("int8"))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-5)
    assert not fast or not fast[-1], "the baseline has no such instruction"


@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_norm(build: str, width: int, activation: str) -> None:
    torch.manual_seed(width)
    norm, x, y = nn.LayerNorm(width), 5 + 3 * torch.randn(4, width), torch.empty(4, width)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    program = Program()
    program.norm(x, norm.weight, norm.bias, norm.eps, y, activation=activation)
    run(program, 4)
    expected = norm(x).detach()
    expected = expected.relu() if activation == "relu" else expected
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    step=st.integers(0, 40),
    width=st.sampled_from([3, 16, 50]),
    p=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_dropout_is_the_batch_models(seed: int, step: int, width: int, p: float) -> None:
    if not is_available():
        pytest.skip(native.why_not())
    who = torch.tensor([2**40 + 3, 0, 77])
    noise = PrenetNoise(seed, who)
    x = torch.ones(3, width)
    program = Program()
    program.dropout(x, noise.key(1), who, p)
    runner = FreeRunner(program, torch.arange(3), [3], max_steps=step + 1)
    for _ in range(step + 1):
        x.fill_(1)
        runner.advance(1)
    keep = noise.keep(1, torch.tensor([step]), width, p)[:, 0]
    torch.testing.assert_close(x, keep / (1 - p))


def test_positions(build: str) -> None:
    x, table = torch.zeros(2, 21), torch.randn(3, 21)
    program = Program()
    program.positions(x, table)
    run(program, 2, steps=3)
    torch.testing.assert_close(x, table.sum(0).expand(2, -1))


@pytest.mark.parametrize("feature_map", ["elu", "relu", "identity"])
@pytest.mark.parametrize("width", [3, 16, 64, 72])
def test_linear_attention(build: str, feature_map: str, width: int) -> None:
    torch.manual_seed(width)
    ours, truth = (empty_state(2, 3, width, width, like=torch.empty(0)) for _ in range(2))
    qkv, y = torch.empty(2, 9 * width), torch.empty(2, 3 * width)
    program = Program()
    program.linear_attention(qkv, ours, feature_map, y)
    runner = FreeRunner(program, torch.arange(2), [2], max_steps=4)
    for _ in range(4):
        qkv.uniform_(0.1, 1) if feature_map == "identity" else qkv.normal_()
        runner.advance(1)
        q, k, v = qkv.unflatten(1, (3, 3, width)).unbind(1)
        expected, _ = causal_linear_step(q, k, v, truth, feature_map=feature_map)
        torch.testing.assert_close(y, expected.flatten(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.s, truth.s)
    torch.testing.assert_close(ours.z, truth.z)


@pytest.mark.parametrize("width", [4, 16, 48, 80])
def test_attention_over_a_memory(build: str, width: int) -> None:
    torch.manual_seed(width)
    places, lengths = 160, torch.tensor([1, 17, 143])
    q, y = torch.randn(3, 2 * width), torch.empty(3, 2 * width)
    k, v = torch.randn(3, 2, width, places), torch.randn(3, 2, places, width)
    for row, length in enumerate(lengths.tolist()):  # what lies beyond is never used
        k[row, :, :, length:] = float("nan")
        v[row, :, length:] = float("nan")
    weights = torch.zeros(3, 1, 1, 143)
    program = Program()
    program.attention(q, k, v, y, lengths=lengths, weights=weights)
    run(program, 3)
    for row, length in enumerate(lengths.tolist()):
        heads = q[row].unflatten(0, (2, width))
        scores = torch.einsum("hd,hdp->hp", heads, k[row, :, :, :length]) / width**0.5
        chosen = scores.softmax(-1)
        read = torch.einsum("hp,hpd->hd", chosen, v[row, :, :length]).flatten()
        torch.testing.assert_close(y[row], read, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weights[row, 0, 0, :length], chosen[0], rtol=1e-5, atol=1e-6)
        assert weights[row, 0, 0, length:].abs().sum() == 0


def test_attention_around_a_centre_that_goes_on(build: str) -> None:
    torch.manual_seed(0)
    width, lengths = 12, torch.tensor([5, 70])
    k, v = torch.randn(2, 3, width, 80), torch.randn(2, 3, 80, width)
    at = Location(torch.empty(2, 1), torch.zeros(2).double(), torch.randn(3), torch.randn(3))
    q, y = torch.randn(2, 3 * width), torch.empty(2, 3 * width)
    program = Program()
    program.attention(q, k, v, y, lengths=lengths, location=at)
    runner = FreeRunner(program, torch.tensor([1, 0]), [2], max_steps=9)
    total = torch.zeros(2, 1, dtype=torch.float64)
    for raw in (-40.0, 0.3, 19.0, 21.0):
        at.advance[:, 0] = torch.tensor([raw, raw - 1])
        runner.advance(1)
        total += F.softplus(at.advance).double()
        for row, number in ((0, 1), (1, 0)):  # row of an utterance
            size = int(lengths[number])
            scores = torch.einsum("hd,hdp->hp", q[row].unflatten(0, (3, width)), k[number])
            distance = torch.arange(80) - total[row] - at.offset[:, None]
            scores = scores / width**0.5 - (distance / at.log_sigma.exp()[:, None]).square() / 2
            read = torch.einsum(
                "hp,hpd->hd", scores[:, :size].softmax(-1).float(), v[number, :, :size]
            )
            torch.testing.assert_close(y[row], read.flatten(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(at.centre, total[:, 0].flip(0))


def test_attention_that_goes_on_from_where_it_was(build: str) -> None:
    torch.manual_seed(0)
    width, lengths, floor = 12, [5, 70], 1e-5
    k, v = torch.randn(2, 3, width, 80), torch.randn(2, 3, 80, width)
    walk = Walk(torch.empty(2, 3), torch.eye(2, 80)[[0, 0]], floor)
    q, y = torch.empty(2, 3 * width), torch.empty(2, 3 * width)
    program = Program()
    program.attention(q, k, v, y, lengths=torch.tensor(lengths), walk=walk)
    runner = FreeRunner(program, torch.tensor([1, 0]), [2], max_steps=9)
    reached = [torch.eye(1, size)[0] for size in lengths]
    for _ in range(5):
        q.normal_()
        walk.moves.normal_()
        runner.advance(1)
        for row, number in ((0, 1), (1, 0)):  # row of an utterance
            size, move = lengths[number], walk.moves[row].softmax(-1)
            moved = [F.pad(reached[number], (j, 0))[:size] * move[j] for j in range(3)]
            scores = torch.einsum("hd,hdp->hp", q[row].unflatten(0, (3, width)), k[number])
            scores = scores[:, :size] / width**0.5 + (sum(moved) + floor).log()
            chosen = scores.softmax(-1)
            read = torch.einsum("hp,hpd->hd", chosen, v[number, :, :size]).flatten()
            torch.testing.assert_close(y[row], read, rtol=1e-4, atol=1e-5)
            reached[number] = chosen.mean(0)
            ours = walk.reached[number, :size]
            torch.testing.assert_close(ours, reached[number], rtol=1e-4, atol=1e-6)


def test_recent_rows_stand_side_by_side(build: str) -> None:
    past, x, y = torch.zeros(3, 2, 5), torch.empty(2, 5), torch.empty(2, 15)
    program = Program()
    program.recent(x, past, y)
    runner = FreeRunner(program, torch.tensor([2, 0]), [2], max_steps=9)
    history = torch.zeros(2, 2, 5)
    for _ in range(4):
        x.normal_()
        history = torch.cat([history, x[:, None]], 1)
        runner.advance(1)
        torch.testing.assert_close(y, history[:, -3:].flatten(1), rtol=0, atol=0)
    torch.testing.assert_close(past[[2, 0]], history[:, -2:], rtol=0, atol=0)
    assert past[1].abs().sum() == 0


def test_attention_over_the_steps_so_far(build: str) -> None:
    torch.manual_seed(0)
    width, steps = 20, 37
    history = torch.randn(steps, 2, 3 * 2 * width)
    y, qkv = torch.empty(2, 2 * width), torch.empty(2, 6 * width)
    k, v = torch.empty(2, 2, width, 48), torch.empty(2, 2, 48, width)
    program = Program()
    program.attention(qkv, k, v, y)
    runner = FreeRunner(program, torch.arange(2), [2], max_steps=steps)
    rows = []
    for t in range(steps):
        qkv.copy_(history[t])
        runner.advance(1)
        rows.append(y.clone())
    q, keys, values = history.transpose(0, 1).unflatten(2, (3, 2, width)).transpose(1, 3).unbind(2)
    truth = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    torch.testing.assert_close(torch.stack(rows, 1), truth.transpose(1, 2).flatten(2))


def spans_of(lengths: list[int]) -> Tensor:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    rows = [
        (end - length, end, number)
        for number, (end, length) in enumerate(zip(ends, lengths, strict=True))
        for _ in range(length)
    ]
    return torch.tensor(rows)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution(build: str, kernel: int) -> None:
    torch.manual_seed(kernel)
    lengths = [60, 1, 7]
    spans, x, y = spans_of(lengths), torch.randn(68, 6), torch.empty(68, 35)
    conv = nn.Conv1d(6, 35, kernel, padding=kernel // 2)
    program = Program()
    weight = conv.weight.permute(0, 2, 1).flatten(1)
    program.convolution(x, PackedLinear(weight, conv.bias), y, spans)
    program.run_once([60, 8])
    expected = [conv(part.T).T for part in x.split(lengths)]
    torch.testing.assert_close(y, torch.cat(expected).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [4, 16, 36])
@pytest.mark.parametrize("near", [False, True], ids=["anywhere", "near"])
def test_attention_inside_spans(build: str, width: int, near: bool) -> None:
    torch.manual_seed(width)
    lengths = [1, 40, 9]
    spans, qkv, y = spans_of(lengths), torch.randn(50, 6 * width), torch.empty(50, 2 * width)
    program = Program()
    slopes = torch.tensor([1.0, 0.125]) if near else None
    program.span_attention(qkv, 2, spans, y, slopes)
    program.run_once([1, 49])
    for part, read in zip(qkv.split(lengths), y.split(lengths), strict=True):
        q, k, v = part.unflatten(1, (3, 2, width)).permute(1, 2, 0, 3)
        place = torch.arange(len(part))
        bias = (place[:, None] - place).abs() * (torch.zeros(2) if slopes is None else -slopes)[
            :, None, None
        ]
        truth = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        torch.testing.assert_close(read, truth.transpose(0, 1).flatten(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [5, 16, 40])
def test_remember(build: str, width: int) -> None:
    lengths = [3, 33]
    kv = torch.randn(36, 4 * width)
    k, v = torch.zeros(2, 2, width, 48), torch.zeros(2, 2, 48, width)
    program = Program()
    program.remember(kv, spans_of(lengths), k, v)
    program.run_once([36])
    for number, part in enumerate(kv.split(lengths)):
        keys, values = part.unflatten(1, (2, 2, width)).permute(1, 2, 0, 3)
        torch.testing.assert_close(k[number, :, :, : len(part)], keys.transpose(1, 2))
        torch.testing.assert_close(v[number, :, : len(part)], values)
        assert k[number, :, :, len(part) :].abs().sum() == 0
