"""Frames taken some steps at a time are those of the run in one go."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import NUM_MELS, NUM_SYMBOLS, PLACES, build, config, texts
from torch import Tensor

from profforce.config import ModelKind
from profforce.models import native
from profforce.models.build import build_model
from profforce.models.mirror import Mirror
from profforce.models.stream import DEAF, FrameStream, RefineStream, Steps
from profforce.models.tacotron2 import Tacotron2
from profforce.models.tts import TTSModel
from profforce.nn.noise import PrenetNoise

MAX_FRAMES = 37


def streamed(model: TTSModel, sizes: list[int], seed: int) -> tuple[list[Steps], Tensor]:
    """Windows of one utterance in ``sizes`` steps, the rest in one, and its refined frames."""
    symbols, lengths = texts(1, seed)
    max_steps = -(-MAX_FRAMES // model.config.reduction_factor)
    noise, mirror = PrenetNoise(seed, torch.tensor([7])), Mirror(model)
    stream = FrameStream(mirror, symbols, lengths, max_steps, noise=noise)
    refine, windows, refined, left = RefineStream(mirror), [], [], MAX_FRAMES
    for size in [*sizes, max_steps]:
        if left == 0:
            break
        windows.append(stream.advance(size))
        frames = windows[-1].frames[:left]
        left -= len(frames)
        refined.append(refine.push(frames, left == 0))
    return windows, torch.cat(refined)


@settings(max_examples=40, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax"]),
    places=st.sampled_from(PLACES),
    reduction=st.sampled_from([1, 2, 5]),
    postnet=st.integers(0, 3),
    kernel=st.sampled_from([3, 5]),
    sizes=st.lists(st.integers(1, 9), max_size=8),
    by_modules=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_windows_give_the_whole(
    attention: str,
    places: dict[str, object],
    reduction: int,
    postnet: int,
    kernel: int,
    sizes: list[int],
    by_modules: bool,
    seed: int,
) -> None:
    model = build(
        torch.float32,
        seed,
        attention=attention,
        **places,
        reduction_factor=reduction,
        postnet_layers=postnet,
        postnet_kernel=kernel,
    )
    with pytest.MonkeyPatch.context() as patch:
        if by_modules:
            patch.setattr(native, "obstacle", lambda model: "it was asked for")
        windows, refined = streamed(model, sizes, seed)
        symbols, lengths = texts(1, seed)
        noise = PrenetNoise(seed, torch.tensor([7]))
        limit = torch.tensor([MAX_FRAMES])
        whole = Mirror(model).free_run(symbols, lengths, limit, noise=noise, stop_threshold=DEAF)
    before = model.denormalize(torch.cat([w.frames for w in windows]))[:MAX_FRAMES]
    stop = torch.cat([w.stop_probability for w in windows])[:MAX_FRAMES]
    alignments = torch.cat([w.alignments for w in windows], 1)
    if not by_modules:  # row by row the same sums: not a bit differs
        assert torch.equal(before, whole.mel_before[0])
        assert torch.equal(stop, whole.stop_probability[0])
        assert torch.equal(alignments, whole.alignments[0])
        assert torch.equal(refined, whole.mel[0])
    for ours, theirs in (
        (before, whole.mel_before[0]),
        (stop, whole.stop_probability[0]),
        (alignments, whole.alignments[0]),
        (refined, whole.mel[0]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_engine_is_what_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mirror, "step", lambda *_: pytest.fail("stepped through the modules"))
    streamed(build(torch.float32), [1, 2, 3], 0)


def test_what_the_postnet_keeps_does_not_grow() -> None:
    model = build(torch.float32, postnet_layers=3, postnet_kernel=5)
    refine = RefineStream(Mirror(model))
    for number in range(50):
        out = refine.push(torch.randn(4, model.num_mels), False)
        assert len(out) == 4 or number < 2
        assert len(refine._kept) <= 2 * refine.delay + 4


def test_another_network_streams_by_its_own_steps() -> None:
    torch.manual_seed(0)
    model = build_model(config(kind=ModelKind.tacotron2), NUM_SYMBOLS, NUM_MELS).eval()
    assert isinstance(model, Tacotron2)
    windows, refined = streamed(model, [1, 3, 2], 0)
    symbols, lengths = texts(1, 0)
    whole = Mirror(model).free_run(
        symbols,
        lengths,
        torch.tensor([MAX_FRAMES]),
        noise=PrenetNoise(0, torch.tensor([7])),
        stop_threshold=DEAF,
    )
    assert len(windows) == 4
    torch.testing.assert_close(refined, whole.mel[0], rtol=1e-5, atol=1e-5)
