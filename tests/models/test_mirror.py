"""Laws of the mirror: parity with the batch model, padding invariance, one storage."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import NUM_MELS, PLACES, build, texts
from torch import Tensor, nn

from profforce.config import Activation, FeatureMap, ModelConfig
from profforce.errors import UserError
from profforce.models.mirror import Mirror
from profforce.models.tie import tie
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import SelfAttention, register_self_attention
from profforce.nn.noise import PrenetNoise

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class DecayingAverage(SelfAttention):
    """A user's own layer: an exponential average with a running-statistics buffer."""

    decay: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.value = nn.Linear(config.width, config.width)
        self.register_buffer("decay", torch.tensor(0.7))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        state, rows = self.init_state(len(x), x.shape[1], x), []
        for t in range(x.shape[1]):
            y, state = self.step(x[:, t], state, t)
            rows.append(y)
        return torch.stack(rows, 1)

    def init_state(self, batch: int, max_steps: int, like: Tensor) -> tuple[Tensor]:
        return (like.new_zeros(batch, self.value.out_features),)

    def step(self, x: Tensor, state: tuple[Tensor], t: int) -> tuple[Tensor, tuple[Tensor]]:
        mean = self.decay * state[0] + (1 - self.decay) * self.value(x)
        return mean, (mean,)


register_self_attention("decaying_average", DecayingAverage)


def forced_steps(model: TransformerTTS, *batch: Tensor, noise: PrenetNoise) -> dict[str, Tensor]:
    """The mirror stepped on given frames, its outputs stacked over time."""
    symbols, symbol_lengths, mel = batch
    inputs = model.decoder_inputs(mel)
    mirror = Mirror(model)
    state = mirror.start(symbols, symbol_lengths, inputs.shape[1], noise=noise)
    rows = []
    for t in range(inputs.shape[1]):
        step, state = mirror.step(replace(state, frames=inputs[:, t]))
        rows.append(step)
    return {
        "frames": torch.cat([row.frames for row in rows], 1),
        "stop_logits": torch.cat([row.stop_logits for row in rows], 1),
        "hidden": torch.stack([row.hidden for row in rows], 1),
        "alignments": torch.stack([row.alignments for row in rows], 2),
    }


@settings(max_examples=24, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax", "decaying_average"]),
    reduction=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    rezero=st.booleans(),
    feature_map=st.sampled_from([FeatureMap.elu, FeatureMap.relu]),
    activation=st.sampled_from(list(Activation)),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_the_recurrent_form_equals_the_parallel_form_frame_by_frame(
    attention: str,
    reduction: int,
    dtype: torch.dtype,
    rezero: bool,
    feature_map: FeatureMap,
    activation: Activation,
    places: dict[str, object],
    seed: int,
) -> None:
    model = build(
        dtype,
        seed,
        attention=attention,
        reduction_factor=reduction,
        rezero=rezero,
        feature_map=feature_map,
        activation=activation,
        **places,
    )
    symbols, symbol_lengths = texts(3, seed)
    mel = torch.randn(3, 19, NUM_MELS, dtype=dtype) - 4
    mel_lengths = torch.tensor([19, 1, 10])
    noise = PrenetNoise(seed, torch.tensor([4, 9, 2]))
    parallel = model(symbols, symbol_lengths, mel, mel_lengths, noise=noise)
    stepped = forced_steps(model, symbols, symbol_lengths, mel, noise=noise)
    tolerance = TOLERANCE[dtype]
    for i, length in enumerate(mel_lengths.tolist()):
        steps = -(-length // reduction)
        before = model.denormalize(stepped["frames"][i, :length])
        for ours, truth in (
            (before, parallel.mel_before[i, :length]),
            (stepped["stop_logits"][i, :length], parallel.stop_logits[i, :length]),
            (stepped["hidden"][i, :steps], parallel.hidden[i, :steps]),
            (stepped["alignments"][i, :, :steps], parallel.alignments[i, :, :steps]),
        ):
            assert (ours - truth).abs().max() <= tolerance * (1 + truth.abs().max())


@settings(max_examples=12, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax"]),
    reduction=st.sampled_from([1, 2, 4]),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_teacher_forcing_on_a_free_run_repeats_the_free_run(
    attention: str, reduction: int, places: dict[str, object], seed: int
) -> None:
    model = build(torch.float64, seed, attention=attention, reduction_factor=reduction, **places)
    symbols, symbol_lengths = texts(4, seed)
    noise = PrenetNoise(seed, torch.arange(4))
    limit = torch.tensor([23, 7, 16, 1])
    run = Mirror(model).free_run(symbols, symbol_lengths, limit, noise=noise, stop_threshold=0.6)
    again = model(symbols, symbol_lengths, run.mel_before, run.lengths, noise=noise)
    for ours, truth in (
        (again.mel_before, run.mel_before),
        (again.mel, run.mel),
        (again.alignments, run.alignments),
    ):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    mask = torch.arange(run.mel.shape[1]) < run.lengths[:, None]
    torch.testing.assert_close(again.stop_logits.sigmoid() * mask, run.stop_probability)
    assert (run.lengths <= limit).all() and (run.lengths >= 1).all()


@settings(max_examples=12, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax"]),
    reduction=st.sampled_from([1, 2, 4]),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_an_utterance_alone_equals_itself_in_a_batch_of_32(
    attention: str, reduction: int, places: dict[str, object], seed: int
) -> None:
    model = build(torch.float64, seed, attention=attention, reduction_factor=reduction, **places)
    symbols, symbol_lengths = texts(32, seed)
    mel = torch.randn(32, 21, NUM_MELS, dtype=torch.float64) - 4
    g = torch.Generator().manual_seed(seed)
    mel_lengths = torch.randint(1, 22, (32,), generator=g)
    identity = torch.randint(0, 2**32, (32,), generator=g)
    batch = model(symbols, symbol_lengths, mel, mel_lengths, noise=PrenetNoise(1, identity))
    limit = torch.full((32,), 24)
    free = Mirror(model).free_run(
        symbols, symbol_lengths, limit, noise=PrenetNoise(1, identity), stop_threshold=0.6
    )
    for i in (0, 13, 31):
        size, length = int(symbol_lengths[i]), int(mel_lengths[i])
        alone = (symbols[i : i + 1, :size], symbol_lengths[i : i + 1])
        noise = PrenetNoise(1, identity[i : i + 1])
        single = model(*alone, mel[i : i + 1, :length], mel_lengths[i : i + 1], noise=noise)
        torch.testing.assert_close(single.mel[0], batch.mel[i, :length])
        assert batch.mel[i, length:].abs().sum() == 0
        assert batch.stop_logits[i, length:].abs().sum() == 0
        steps = -(-length // reduction)
        torch.testing.assert_close(single.hidden[0], batch.hidden[i, :steps])
        assert batch.hidden[i, steps:].abs().sum() == 0
        run = Mirror(model).free_run(*alone, limit[:1], noise=noise, stop_threshold=0.6)
        assert run.lengths[0] == free.lengths[i]
        assert run.stopped[0] == free.stopped[i]
        torch.testing.assert_close(run.mel[0], free.mel[i, : int(free.lengths[i])])


def test_what_stands_in_the_padding_of_the_targets_does_not_matter() -> None:
    model = build(torch.float64, reduction_factor=2)
    symbols, symbol_lengths = texts(2, 1)
    mel = torch.randn(2, 9, NUM_MELS, dtype=torch.float64)
    lengths = torch.tensor([9, 5])
    clean = model(symbols, symbol_lengths, mel, lengths)
    mel[1, 5:] = 1e3
    symbols = symbols.clone()
    symbols[0, int(symbol_lengths[0]) :] = 3
    dirty = model(symbols, symbol_lengths, mel, lengths)
    torch.testing.assert_close(dirty.mel, clean.mel)


def test_gradients_do_not_reach_padding() -> None:
    model = build(torch.float64, reduction_factor=2)
    symbols, symbol_lengths = texts(2, 1)
    mel = torch.randn(2, 9, NUM_MELS, dtype=torch.float64, requires_grad=True)
    out = model(symbols, symbol_lengths, mel, torch.tensor([9, 5]))
    (out.mel.square().sum() + out.hidden.square().sum()).backward()
    assert mel.grad is not None
    assert mel.grad[1, 5:].abs().sum() == 0
    assert mel.grad[1, :4].abs().sum() > 0


def speak(mirror: Mirror) -> Tensor:
    symbols, lengths = texts(2, 0)
    noise = PrenetNoise(0, torch.arange(2))
    return mirror.free_run(
        symbols, lengths, torch.tensor([9, 9]), noise=noise, stop_threshold=0.99
    ).mel


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["plain", "native"])
@pytest.mark.parametrize("change", ["optimizer", "load", "assign", "to", "buffer"])
def test_the_mirror_follows_the_model_whatever_happens_to_it(
    change: str, dtype: torch.dtype
) -> None:
    model, other = build(dtype, 1), build(dtype, 2)
    mirror = Mirror(model)
    before = speak(mirror)
    if change == "optimizer":
        symbols, lengths = texts(2, 0)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(symbols, lengths, before, torch.tensor([9, 9])).mel.square().mean().backward()
        optimizer.step()
    elif change in ("load", "assign"):
        model.load_state_dict(other.state_dict(), assign=change == "assign")
    elif change == "to":
        model.to(torch.float16).to(dtype)
        model.mel_mean.add_(1)
    else:
        model.set_mel_statistics(torch.zeros(NUM_MELS), torch.ones(NUM_MELS))
    after = speak(mirror)
    assert not torch.equal(before, after)
    assert torch.equal(after, speak(Mirror(model)))


def test_a_deepcopy_of_model_and_mirror_is_tied_to_itself_only() -> None:
    model = build(torch.float64)
    model.mirror = Mirror(model)
    twin = copy.deepcopy(model)
    assert twin.mirror.model is twin
    assert not any("mirror" in name for name in model.state_dict())
    before = speak(model.mirror)
    with torch.no_grad():
        twin.mel_out.bias.add_(1)
    assert torch.equal(speak(model.mirror), before)
    assert not torch.equal(speak(twin.mirror), before)


def test_free_running_leaves_the_training_modes_as_they_were() -> None:
    model = build(torch.float64, dropout=0.5)
    model.train()
    model.postnet.eval()
    first = speak(Mirror(model))
    assert torch.equal(first, speak(Mirror(model)))
    assert model.training and model.decoder.training and not model.postnet.training


class Normalised(nn.Module):
    """With parameters and running statistics, at two depths."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


@pytest.mark.parametrize("change", ["step", "load", "assign", "to", "statistics", "deepcopy"])
def test_tie_holds_through_everything_buffers_included(change: str) -> None:
    torch.manual_seed(0)
    src, dst, other = Normalised(), Normalised(), Normalised()
    nn.init.constant_(other.scale, 3.0)
    tie(src, dst)
    x = torch.randn(8, 4)
    if change == "step":
        optimizer = torch.optim.SGD(src.parameters(), 0.5)
        src(x).square().sum().backward()
        optimizer.step()
    elif change in ("load", "assign"):
        dst.load_state_dict(other.state_dict(), assign=change == "assign")
    elif change == "to":
        src.to(torch.float64)
        x = x.double()
    elif change == "statistics":
        src.train()(x)
    else:
        src, dst = copy.deepcopy((src, dst))
        with torch.no_grad():
            src.scale.mul_(2)
    assert src.state_dict().keys() == dst.state_dict().keys()
    for name, value in src.state_dict().items():
        assert value.data_ptr() == dst.state_dict()[name].data_ptr()
    assert torch.equal(src.eval()(x), dst.eval()(x))


def test_tie_refuses_modules_that_differ() -> None:
    with pytest.raises(UserError, match=r"differ at 'inner.0.bias'; got \(5,\) in dst"):
        tie(Normalised(4), Normalised(5))


def test_an_unknown_attention_is_one_line_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'linear'"):
        build(torch.float32, attention="liner")
