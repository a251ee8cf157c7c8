"""Training in segments: the gradients of the plain pass, from memory that does not grow."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import PLACES, config, stir
from torch import Tensor, nn

from profforce.bench import peak
from profforce.config import Activation, CrossAttentionKind, FeatureMap
from profforce.errors import UserError
from profforce.models.segments import check_segments
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TeacherForced
from profforce.nn.attention import LinearSelfAttention, SelfAttention
from profforce.nn.noise import PrenetNoise

NUM_SYMBOLS, NUM_MELS, NUM_FRAMES = 12, 6, 19
OUTPUTS = ("mel", "mel_before", "stop_logits", "hidden", "alignments")
SMALL = config(decoder_layers=3, dropout=0.0)
SYMBOLS = torch.tensor([[1, 5, 3, 7], [2, 0, 0, 0], [9, 4, 4, 0]])
SYMBOL_LENGTHS = torch.tensor([4, 1, 3])
LENGTHS = torch.tensor([NUM_FRAMES, 1, 10])
NOISE = PrenetNoise(3, torch.tensor([4, 9, 2]))
SPEAKERS = torch.tensor([1, 0, 1])


def build(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object) -> TransformerTTS:
    torch.manual_seed(seed)
    model = TransformerTTS(replace(SMALL, **changes), NUM_SYMBOLS, NUM_MELS).to(dtype)
    for block in model.decoder:  # ReZero starts at zero: open the gates, or nothing is tested
        if block.gates is not None:
            nn.init.constant_(block.gates, 0.5)
    stir(model)
    model.set_mel_statistics(torch.linspace(-6, -3, NUM_MELS), torch.linspace(1, 2, NUM_MELS))
    return model


def mels(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, NUM_FRAMES, NUM_MELS, dtype=dtype, generator=rng(5)) - 4


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def forward(model: TransformerTTS, mel: Tensor, refine: bool = True) -> TeacherForced:
    return model(
        SYMBOLS, SYMBOL_LENGTHS, mel, LENGTHS, noise=NOISE, speakers=SPEAKERS, refine=refine
    )


def loss_of(out: TeacherForced, names: tuple[str, ...] = OUTPUTS) -> Tensor:
    """Every output and every place of it with a weight of its own, padding included."""
    total = torch.zeros((), dtype=out.mel.dtype)
    for number, name in enumerate(names):
        value = getattr(out, name)
        weights = torch.randn(value.shape, generator=rng(number), dtype=torch.float64)
        total = total + (value * weights.to(value.dtype)).sum()
    return total


def gradients(
    model: TransformerTTS,
    segment_steps: int | None,
    names: tuple[str, ...] = OUTPUTS,
    refine: bool = True,
) -> tuple[TeacherForced, dict[str, Tensor | None]]:
    model.segment_steps = segment_steps
    model.zero_grad()
    mel = mels(model.mel_mean.dtype).requires_grad_()
    out = forward(model, mel, refine)
    loss_of(out, names).backward()
    return out, {"mel": mel.grad, **{name: p.grad for name, p in model.named_parameters()}}


def assert_same(
    found: dict[str, Tensor | None], wanted: dict[str, Tensor | None], tolerance: float
) -> None:
    scale = max(float(x.norm()) for x in wanted.values() if x is not None)
    for name, truth in wanted.items():
        ours = found[name]
        assert (ours is None) == (truth is None), name
        if ours is not None and truth is not None:
            error = float((ours - truth).norm())
            assert error <= tolerance * (float(truth.norm()) + 1e-3 * scale), name


@settings(max_examples=16, deadline=None)
@given(
    segment_steps=st.integers(1, 24),
    reduction=st.sampled_from([1, 2, 3]),
    rezero=st.booleans(),
    feature_map=st.sampled_from([FeatureMap.elu, FeatureMap.relu]),
    guided_layers=st.sampled_from([1, 3]),
    speakers=st.sampled_from([0, 2]),
    postnet=st.sampled_from([(0, 3), (1, 5), (3, 3)]),
    refine=st.booleans(),
    recompute=st.booleans(),
    places=st.sampled_from([p for p in PLACES if p["cross_attention"] != "forward"]),
    seed=st.integers(0, 99),
)
def test_outputs_and_every_gradient_are_those_of_the_plain_pass(
    segment_steps: int,
    reduction: int,
    rezero: bool,
    feature_map: FeatureMap,
    guided_layers: int,
    speakers: int,
    postnet: tuple[int, int],
    refine: bool,
    recompute: bool,
    places: dict[str, object],
    seed: int,
) -> None:
    """Also those of the text encoder, which come through the memories, and of the targets.

    With ``relu`` heads may have no key at all for some segments: there the normaliser is 1e-6, and
    the least remainder of later keys in the state would show.
    """
    model = build(
        seed=seed,
        reduction_factor=reduction,
        rezero=rezero,
        feature_map=feature_map,
        guided_layers=guided_layers,
        num_speakers=speakers,
        postnet_layers=postnet[0],
        postnet_kernel=postnet[1],
        **places,
    )
    model.recompute_activations = recompute
    plain, wanted = gradients(model, None, refine=refine)
    ours, found = gradients(model, segment_steps, refine=refine)
    for name in OUTPUTS:
        truth = getattr(plain, name)
        torch.testing.assert_close(getattr(ours, name), truth, rtol=1e-10, atol=1e-10, msg=name)
    assert wanted["embedding.weight"] is not None
    assert_same(found, wanted, 1e-9)


@pytest.mark.parametrize("segment_steps", [1, 4, 10])
def test_in_float32_too(segment_steps: int) -> None:
    model = build(torch.float32)
    _, wanted = gradients(model, None)
    _, found = gradients(model, segment_steps)
    assert_same(found, wanted, 1e-5)


@pytest.mark.parametrize("names", [("hidden",), ("alignments",), ("mel_before", "hidden")], ids=str)
def test_some_outputs_may_have_no_gradient(names: tuple[str, ...]) -> None:
    """As in the pass over self-made utterances."""
    model = build(reduction_factor=2)
    _, wanted = gradients(model, None, names)
    _, found = gradients(model, 3, names)
    used = {name: grad for name, grad in wanted.items() if grad is not None}
    assert_same(found, used, 1e-9)


def test_keys_of_later_segments_leave_no_trace_where_there_are_none() -> None:
    model = build(
        seed=60, feature_map=FeatureMap.relu, rezero=True, guided_layers=1, reduction_factor=1
    )
    _, wanted = gradients(model, None)
    _, found = gradients(model, 1)
    assert_same(found, wanted, 1e-9)


def test_frozen_weights_get_no_gradient_and_the_others_keep_theirs() -> None:
    model = build(reduction_factor=2)
    for part in (model.embedding, model.prenet, model.decoder[0], model.postnet.convs[0]):
        part.requires_grad_(False)
    _, wanted = gradients(model, None)
    _, found = gradients(model, 4)
    assert found["decoder.0.attention.qkv.weight"] is None
    assert_same(found, wanted, 1e-9)


@pytest.mark.parametrize("segment_steps", [2, 7])
def test_with_dropout_the_gradient_is_that_of_the_very_masks_drawn(segment_steps: int) -> None:
    """Against central differences along a random direction, the draws repeated by their seed."""
    model = build(
        dropout=0.3, reduction_factor=2, activation=Activation.gelu, postnet_layers=3
    ).train()
    model.segment_steps = segment_steps
    weights = list(model.parameters())
    direction = [
        torch.randn(p.shape, generator=rng(i), dtype=p.dtype) for i, p in enumerate(weights)
    ]

    def loss(shift: float) -> Tensor:
        torch.manual_seed(7)
        with torch.no_grad():
            for p, d in zip(weights, direction, strict=True):
                p.add_(shift * d)
        return loss_of(forward(model, mels()))

    value = loss(0.0)
    grads = torch.autograd.grad(value, weights, allow_unused=True)
    slope = sum(
        float((g * d).sum()) for g, d in zip(grads, direction, strict=True) if g is not None
    )
    step = 1e-6
    with torch.no_grad():
        higher = float(loss(step))
        lower = float(loss(-2 * step))
    assert slope == pytest.approx((higher - lower) / (2 * step), rel=1e-5)
    torch.manual_seed(8)
    assert not torch.equal(loss_of(forward(model, mels())), value)


def test_dropout_differs_from_segment_to_segment() -> None:
    model = build(dropout=0.5, prenet_dropout=0.0)
    seen: list[Tensor] = []
    model.decoder[0].dropout.register_forward_hook(lambda *a: seen.append(a[2] == 0))
    model.segment_steps = 5
    with torch.no_grad():
        forward(model.train(), mels())
    first, second = seen[0], seen[3]  # three dropouts of the block a segment
    assert first.shape == second.shape and not torch.equal(first, second)


def test_a_pass_moves_the_global_generator_alike_whatever_the_segments() -> None:
    model = build(dropout=0.5)
    after = []
    for segment_steps in (2, 9):
        model.segment_steps = segment_steps
        torch.manual_seed(1)
        loss_of(forward(model, mels())).backward()
        after.append(torch.rand(()))
    assert after[0] == after[1]


def test_gradients_accumulate_and_hooks_of_the_weights_fire_once() -> None:
    """As data-parallel training needs it."""
    model = build(torch.float32)
    _, once = gradients(model, 4)
    model.zero_grad()
    calls: dict[str, int] = {}

    def count(name: str) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            calls[name] = calls.get(name, 0) + 1

        return hook

    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(count(name))
    for _ in range(2):
        loss_of(forward(model, mels(torch.float32))).backward()
    assert set(calls.values()) == {2}
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, 2 * once[name], msg=name)  # type: ignore[operator]


def test_weights_changed_before_the_backward_pass_are_noticed() -> None:
    model = build()
    model.segment_steps = 4
    loss = loss_of(forward(model, mels()))
    with torch.no_grad():
        model.mel_out.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autocast_is_the_same_when_a_segment_is_computed_anew() -> None:
    model = build(torch.float32)
    model.segment_steps = 5
    seen: list[torch.dtype] = []
    for part in (model.decoder_in, model.postnet.convs[0]):
        part.register_forward_hook(lambda *a: seen.append(a[2].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = forward(model, mels(torch.float32))
    count = len(seen)
    sum(getattr(out, name).float().square().sum() for name in OUTPUTS).backward()
    assert len(seen) == 2 * count
    assert set(seen) == {torch.bfloat16}


class NoSegments(LinearSelfAttention):
    segment = SelfAttention.segment


def test_layers_without_a_segment_form_are_refused() -> None:
    cpu = torch.device("cpu")
    check_segments(build(), cpu)
    with pytest.raises(UserError, match=r"trainer.segment_steps: .* got model.attention=softmax"):
        check_segments(build(attention="softmax"), cpu)
    with pytest.raises(
        UserError, match=r"trainer.segment_steps: .* got model.cross_attention=forw"
    ):
        check_segments(build(cross_attention=CrossAttentionKind.forward), cpu)
    model = build()
    model.decoder[1].attention = NoSegments(model.config)
    with pytest.raises(UserError, match="cannot be trained in segments"):
        check_segments(model, cpu)


def test_a_device_without_float64_is_refused() -> None:
    with pytest.raises(UserError, match="segment_steps: training in segments needs float64"):
        check_segments(build(), torch.device("mps"))


MEASURE = """
import torch
from profforce.bench.peak import peak_of
from profforce.config import ModelConfig
from profforce.models.transformer import TransformerTTS

torch.set_num_threads(1)
model = TransformerTTS(ModelConfig(
    width=64, num_heads=2, encoder_layers=1, decoder_layers=2, feedforward_width=256,
    prenet_width=32, postnet_layers=3, postnet_width=64, guided_layers=1, guided_heads=1,
), 12, 8)
symbols, symbol_lengths = torch.randint(1, 12, (1, 8)), torch.tensor([8])

def run(frames, segment_steps):
    model.segment_steps = segment_steps
    out = vars(model(symbols, symbol_lengths, mel[frames], torch.tensor([frames])))
    torch.autograd.backward(list(out.values()), [grads[frames][name] for name in out])
    return sum(x.nbytes for x in out.values()) / 2**20

def gradients(frames, steps):
    return {
        "mel": mel[frames],
        "mel_before": mel[frames],
        "stop_logits": torch.randn(1, frames),
        "hidden": torch.randn(1, steps, 64),
        "alignments": torch.randn(1, 1, steps, 8),
    }

mel = {frames: torch.randn(1, frames, 8) for frames in (400, 1000, 16000)}
grads = {frames: gradients(frames, frames // 2) for frames in mel}
for frames, segment_steps in ((400, 150), (400, None), (1000, None), (1000, 150), (16000, 150)):
    model.zero_grad()
    kept = []
    found = peak_of(lambda: kept.append(run(frames, segment_steps)))
    print(found, *kept, mel[frames].nbytes / 2**20)
"""


@pytest.mark.skipif(not peak.can_measure(), reason="cannot reset VmHWM here")
def test_peak_memory_is_flat_from_1000_to_16000_frames() -> None:
    """Beyond the outputs and a few arrays of the size of the mels.

    Those are the inputs masked and shifted, the frames before the postnet, and their gradients.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE)],
        env={**os.environ, **peak.CHILD_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [[float(x) for x in line.split()] for line in done.stdout.splitlines()]
    plain, short, long = (found - out - 5 * given for found, out, given in rows[2:])
    assert long < short + 3  # MiB; half of one is noise, and sixteen times as much would show
    assert plain > 1.5 * short
