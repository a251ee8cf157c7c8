"""Attention held to a window around where it rested last."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.config import CrossAttentionKind, ModelConfig
from profforce.models.free_run import FreeRun
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import AttentionWindow
from profforce.nn.noise import PrenetNoise
from profforce.sampling.steady import SteadyMirror


def model(attention: str = "linear", cross: str = "content") -> TransformerTTS:
    torch.manual_seed(0)
    config = ModelConfig(
        attention=attention,
        cross_attention=CrossAttentionKind(cross),
        width=32,
        num_heads=4,
        encoder_layers=1,
        decoder_layers=3,
        feedforward_width=32,
        prenet_width=16,
        postnet_layers=2,
        postnet_width=8,
        guided_layers=2,
        guided_heads=2,
    )
    made = TransformerTTS(config, 30, 20)
    with torch.no_grad():
        for block in made.decoder:
            block.cross.q.weight.mul_(12)  # attention that goes about
    return made


def run_of(
    mirror: Mirror, rows: Sequence[int], window: AttentionWindow | None, plain: bool = False
) -> FreeRun:
    generator = torch.Generator().manual_seed(1)
    symbols = torch.randint(1, 30, (8, 24), generator=generator)
    lengths = torch.randint(2, 25, (8,), generator=generator)
    chosen = torch.tensor(rows)
    return mirror.free_run(
        symbols[chosen],
        lengths[chosen],
        2 * lengths[chosen],
        noise=PrenetNoise(0, chosen),
        stop_threshold=2.0,
        window=window,
        plain=plain,
    )


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 12), st.integers(1, 12), st.integers(1, 5), st.integers(0, 5))
def test_the_mask_is_never_empty_and_lies_within_the_text(
    rest: int, length: int, ahead: int, back: int
) -> None:
    live = (torch.arange(12) < length)[None]
    seen = AttentionWindow(ahead, back).mask(torch.tensor([rest]), live)[0]
    at = min(rest, length - 1)
    assert seen.tolist() == [at - back <= s <= at + ahead and s < length for s in range(12)]
    assert seen.any()


@pytest.mark.parametrize("cross", ["content", "monotonic", "forward"])
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_guided_heads_stay_in_the_window_and_go_forwards(attention: str, cross: str) -> None:
    ahead, back = 3, 1
    mirror = Mirror(model(attention, cross))
    rows = range(8)
    free = run_of(mirror, rows, None)
    held = run_of(mirror, rows, AttentionWindow(ahead, back))

    def outside(run: FreeRun) -> float:
        rests, most = torch.zeros(8, dtype=torch.int64), 0.0
        place = torch.arange(24)
        for t in range(run.alignments.shape[2]):
            weights = run.alignments[:, :, t]
            beyond = (place < rests[:, None] - back) | (place > rests[:, None] + ahead)
            most = max(most, float((weights * beyond[:, None]).sum(-1).max()))
            rests = torch.maximum(rests, weights.mean(1).argmax(-1))
        return most

    assert outside(held) < 1e-6 < 0.5 < outside(free)


def test_a_window_as_wide_as_the_text_changes_nothing() -> None:
    mirror = Mirror(model())
    free = run_of(mirror, range(8), None, plain=True)
    held = run_of(mirror, range(8), AttentionWindow(24, 24))
    assert torch.equal(free.mel, held.mel) and torch.equal(free.alignments, held.alignments)


def test_other_heads_are_free() -> None:
    plain = model()
    mirror = Mirror(plain)
    symbols, lengths = torch.randint(1, 30, (1, 24)), torch.tensor([24])
    state = mirror.start(symbols, lengths, 4).within(AttentionWindow(1, 0))
    seen: list[Tensor] = []
    for block in plain.decoder:
        block.cross.register_forward_hook(lambda _, __, output: seen.append(output[1][0, :, 0]))
    mirror.step(state)
    first, *guided = seen
    assert (first[:, 2:].sum(-1) > 0.01).all()
    for weights in guided:
        assert (weights[:2, 2:].sum(-1) == 0).all() and (weights[2:, 2:].sum(-1) > 0.01).all()


def test_what_is_held_has_the_bits_it_has_alone() -> None:
    mirror, window = SteadyMirror(model()), AttentionWindow(3, 1)

    def frames(rows: Sequence[int]) -> list[Tensor]:
        run = run_of(mirror, rows, window)
        return [run.mel[i, :n] for i, n in enumerate(run.lengths.tolist())]

    alone = [frames([i])[0] for i in range(8)]
    for rows in (range(8), [5, 3], [7, 0, 2, 6]):
        for i, made in zip(rows, frames(rows), strict=True):
            assert torch.equal(made, alone[i])
