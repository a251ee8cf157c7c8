"""Free-running with gradients: the mirror's frames, and gradients through what is fed back."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import PLACES, config, stir
from torch import Tensor

from profforce.config import Activation
from profforce.errors import UserError
from profforce.models.mirror import Mirror
from profforce.models.through_time import ThroughTime, check_through_time, run_through_time
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import SelfAttention, SoftmaxSelfAttention
from profforce.nn.noise import PrenetNoise

NUM_SYMBOLS, NUM_MELS = 12, 6
SMALL = config(postnet_layers=1, activation=Activation.gelu)
SYMBOLS = torch.tensor([[1, 5, 3, 7], [2, 0, 0, 0], [9, 4, 4, 0]])
SYMBOL_LENGTHS = torch.tensor([4, 1, 3])
LIMITS = torch.tensor([23, 1, 14])
NOISE = PrenetNoise(3, torch.tensor([4, 9, 2]))
ATTENTIONS = ("linear", "softmax")


def build(seed: int = 0, **changes: object) -> TransformerTTS:
    torch.manual_seed(seed)
    model = TransformerTTS(replace(SMALL, **changes), NUM_SYMBOLS, NUM_MELS).double().eval()
    stir(model)
    model.set_mel_statistics(torch.linspace(-6, -3, NUM_MELS), torch.linspace(1, 2, NUM_MELS))
    return model


def speak(
    model: TransformerTTS,
    recompute_steps: int | None = None,
    *,
    stop_threshold: float = 0.999,
    speakers: Tensor | None = None,
) -> ThroughTime:
    return run_through_time(
        model,
        SYMBOLS,
        SYMBOL_LENGTHS,
        LIMITS,
        noise=NOISE,
        speakers=speakers,
        stop_threshold=stop_threshold,
        recompute_steps=recompute_steps,
    )


def loss_of(run: ThroughTime) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for number, value in enumerate((run.hidden, run.mel_before)):
        weights = torch.randn(
            value.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64
        )
        total = total + (value * weights).sum()
    return total


def gradients(model: TransformerTTS, run: ThroughTime) -> dict[str, Tensor]:
    model.zero_grad()
    loss_of(run).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@settings(max_examples=16, deadline=None)
@given(
    attention=st.sampled_from(ATTENTIONS),
    reduction=st.sampled_from([1, 2, 3]),
    recompute_steps=st.sampled_from([None, 1, 5, 64]),
    threshold=st.sampled_from([0.45, 0.5, 0.6, 0.999]),
    num_speakers=st.sampled_from([0, 2]),
    rezero=st.booleans(),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_it_makes_the_frames_of_the_mirror_s_free_run(
    attention: str,
    reduction: int,
    recompute_steps: int | None,
    threshold: float,
    num_speakers: int,
    rezero: bool,
    places: dict[str, object],
    seed: int,
) -> None:
    """Lengths and stops included, and the hidden states of the pass over those frames."""
    model = build(
        seed,
        attention=attention,
        reduction_factor=reduction,
        num_speakers=num_speakers,
        rezero=rezero,
        **places,
    )
    speakers = torch.tensor([1, 0, 1])
    run = speak(model, recompute_steps, stop_threshold=threshold, speakers=speakers)
    truth = Mirror(model).free_run(
        SYMBOLS,
        SYMBOL_LENGTHS,
        LIMITS,
        noise=NOISE,
        speakers=speakers,
        stop_threshold=threshold,
    )
    assert torch.equal(run.lengths, truth.lengths)
    assert torch.equal(run.stopped, truth.stopped)
    torch.testing.assert_close(run.mel_before, truth.mel_before, rtol=1e-9, atol=1e-9)
    again = model(
        SYMBOLS, SYMBOL_LENGTHS, truth.mel_before, truth.lengths, noise=NOISE, speakers=speakers
    )
    torch.testing.assert_close(run.hidden, again.hidden, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_are_those_of_finite_differences_through_the_whole_run(attention: str) -> None:
    """Of every weight, along a random direction: feedback, attention state, texts, positions."""
    model = build(attention=attention, reduction_factor=2)
    with torch.no_grad():
        model.stop_out.bias.fill_(-9)  # lengths must not jump
    weights = list(model.parameters())
    direction = [
        torch.randn(p.shape, generator=torch.Generator().manual_seed(i), dtype=p.dtype)
        for i, p in enumerate(weights)
    ]

    def loss(shift: float) -> Tensor:
        with torch.no_grad():
            for p, d in zip(weights, direction, strict=True):
                p.add_(shift * d)
        return loss_of(speak(model))

    grads = torch.autograd.grad(loss(0.0), weights, allow_unused=True)
    slope = sum(
        float((g * d).sum()) for g, d in zip(grads, direction, strict=True) if g is not None
    )
    step = 1e-7
    with torch.no_grad():
        higher, lower = float(loss(step)), float(loss(-2 * step))
    assert slope == pytest.approx((higher - lower) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_flow_through_the_frames_fed_back(attention: str) -> None:
    """A teacher-forced pass over the same frames has the same values and other gradients."""
    model = build(attention=attention)
    run = speak(model)
    through = gradients(model, run)
    fixed = model(
        SYMBOLS, SYMBOL_LENGTHS, run.mel_before.detach(), run.lengths, noise=NOISE, refine=False
    )
    same = ThroughTime(fixed.hidden, fixed.mel_before, run.lengths, run.stopped)
    cut = gradients(model, same)
    torch.testing.assert_close(loss_of(run), loss_of(same))
    for name in ("mel_out.weight", "prenet.layers.0.weight"):
        assert float((through[name] - cut[name]).norm()) > 0.01 * float(cut[name].norm()), name


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("recompute_steps", [1, 4, 100])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_recomputed_gradients_are_the_plain_ones(
    attention: str, recompute_steps: int, dropout: float
) -> None:
    """Also in training mode: dropout is drawn in the same order and repeated."""
    model = build(attention=attention, dropout=dropout, reduction_factor=2).train()
    found = []
    for every in (None, recompute_steps):
        torch.manual_seed(1)
        found.append(gradients(model, speak(model, every)))
    plain, recomputed = found
    assert plain.keys() == recomputed.keys()
    for name, grad in plain.items():
        torch.testing.assert_close(recomputed[name], grad, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_recomputing_keeps_less(attention: str) -> None:
    model = build(attention=attention)
    kept = []
    for every in (None, 5):
        seen: dict[int, int] = {}

        def note(x: Tensor, seen: dict[int, int] = seen) -> Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            run = speak(model, every)
        kept.append((sum(seen.values()), run))
    assert kept[1][0] < 0.6 * kept[0][0]


def test_dropout_follows_the_model_s_mode() -> None:
    model = build(dropout=0.5)
    still = speak(model).mel_before
    assert torch.equal(still, speak(model).mel_before)
    model.train()
    assert not torch.equal(still, speak(model).mel_before)


def test_without_gradients_nothing_is_kept() -> None:
    model = build()
    with torch.no_grad():
        run = speak(model, 4)
    assert not run.hidden.requires_grad and not run.mel_before.requires_grad
    torch.testing.assert_close(run.mel_before, speak(model, 4).mel_before)


class NoGradients(SoftmaxSelfAttention):
    traced_step = SelfAttention.traced_step


def test_layers_without_a_traced_step_are_refused() -> None:
    for attention in ATTENTIONS:
        check_through_time(build(attention=attention))
    model = build()
    model.decoder[1].attention = NoGradients(model.config)
    with pytest.raises(UserError, match="method=through_time: this self-attention cannot"):
        check_through_time(model)
