"""However a signal is cut, the stages give what the whole network gives."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from profforce.audio.flow import Chain, ConvStage, Pointwise, Stage, Together, UpStage, residual


def in_parts(stage: Stage, x: Tensor, sizes: list[int]) -> Tensor:
    """``x [B, C, N]`` pushed in ``sizes``, then what is left."""
    made, at = [], 0
    for size in sizes:
        made.append(stage.push(x[..., at : at + size], False))
        at += size
    return torch.cat([*made, stage.push(x[..., at:], True)], -1)


cuts = st.lists(st.integers(0, 9), max_size=8)


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.sampled_from([1, 3, 4, 7]),
    dilation=st.integers(1, 5),
    length=st.integers(1, 40),
    sizes=cuts,
)
def test_a_convolution_in_parts_is_the_whole(
    kernel: int, dilation: int, length: int, sizes: list[int]
) -> None:
    torch.manual_seed(0)
    if kernel % 2 == 0:
        dilation *= 2  # padding is half of the span
    span = dilation * (kernel - 1)
    conv = nn.Conv1d(3, 2, kernel, dilation=dilation, padding=span // 2).double()
    x = torch.randn(2, 3, length, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(in_parts(ConvStage(conv), x, sizes), conv(x))


@settings(deadline=None, max_examples=60)
@given(stride=st.integers(1, 8), half=st.integers(0, 6), length=st.integers(1, 20), sizes=cuts)
def test_a_transposed_convolution_in_parts_is_the_whole(
    stride: int, half: int, length: int, sizes: list[int]
) -> None:
    torch.manual_seed(0)
    conv = nn.ConvTranspose1d(3, 2, stride + 2 * half, stride, padding=half).double()
    x = torch.randn(1, 3, length, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(in_parts(UpStage(conv), x, sizes), conv(x))


@settings(deadline=None, max_examples=60)
@given(length=st.integers(1, 40), sizes=cuts)
def test_stages_that_are_late_by_different_times_add_up(length: int, sizes: list[int]) -> None:
    torch.manual_seed(0)
    one, two, three = (nn.Conv1d(2, 2, k, padding=k // 2).double() for k in (3, 5, 7))
    x = torch.randn(1, 2, length, dtype=torch.float64)
    stage = Together([ConvStage(one), Chain([residual(ConvStage(two)), Pointwise(torch.tanh)])])
    whole = one(x) + torch.tanh(x + two(x))
    with torch.no_grad():
        torch.testing.assert_close(in_parts(stage, x, sizes), whole)
        chain = Chain([residual(ConvStage(one)), residual(ConvStage(three))])
        first = x + one(x)
        torch.testing.assert_close(in_parts(chain, x, sizes), first + three(first))
