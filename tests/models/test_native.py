"""The C++ engine against the plain mirror, which calls the model's own modules."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import PLACES, build, texts
from torch import Tensor, nn

from profforce.config import Activation, FeatureMap
from profforce.kernels import free_run as kernel
from profforce.models import native, native_rows
from profforce.models.free_run import FreeRun
from profforce.models.mirror import Mirror, _say_once
from profforce.models.transformer import TransformerTTS
from profforce.nn.noise import PrenetNoise

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason="no C++ library")


def speak(
    model: TransformerTTS,
    batch: int = 5,
    seed: int = 0,
    *,
    plain: bool = False,
    noisy: bool = True,
    limit: Tensor | None = None,
    precision: str = "float32",
    **options: object,
) -> FreeRun:
    symbols, lengths = texts(batch, seed)
    g = torch.Generator().manual_seed(seed)
    if limit is None:
        limit = torch.randint(1, 24, (batch,), generator=g)
    who = torch.randint(0, 2**40, (batch,), generator=g)
    return Mirror(model).free_run(
        symbols,
        lengths,
        limit,
        noise=PrenetNoise(seed, who) if noisy else None,
        stop_threshold=0.6,
        plain=plain,
        precision=precision,
        **options,
    )


def assert_same(ours: FreeRun, truth: FreeRun, tolerance: float = 1e-5) -> None:
    assert torch.equal(ours.lengths, truth.lengths)
    assert torch.equal(ours.stopped, truth.stopped)
    for name in ("mel", "mel_before", "stop_probability", "alignments"):
        mine, theirs = getattr(ours, name), getattr(truth, name)
        torch.testing.assert_close(
            mine, theirs, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@settings(max_examples=40, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax"]),
    reduction=st.sampled_from([1, 2, 5]),
    feature_map=st.sampled_from(list(FeatureMap)[:2]),
    activation=st.sampled_from(list(Activation)),
    rezero=st.booleans(),
    noisy=st.booleans(),
    width=st.sampled_from([16, 20, 64, 96]),
    convolutions=st.sampled_from([0, 2]),
    num_speakers=st.sampled_from([0, 3]),
    guided=st.sampled_from([1, 2]),
    batch=st.sampled_from([1, 3, 17]),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_the_engine_makes_the_plain_mirrors_frames(
    attention: str,
    reduction: int,
    feature_map: FeatureMap,
    activation: Activation,
    rezero: bool,
    noisy: bool,
    width: int,
    convolutions: int,
    num_speakers: int,
    guided: int,
    batch: int,
    places: dict[str, object],
    seed: int,
) -> None:
    model = build(
        torch.float32,
        seed,
        attention=attention,
        reduction_factor=reduction,
        feature_map=feature_map,
        activation=activation,
        rezero=rezero,
        width=width,
        encoder_conv_layers=convolutions or int(places["positions"] == "relative"),
        postnet_layers=convolutions,
        num_speakers=num_speakers,
        guided_heads=guided,
        guided_layers=guided,
        **places,
    )
    speakers = torch.arange(batch) % 3 if num_speakers else None
    ours = speak(model, batch, seed, noisy=noisy, speakers=speakers)
    assert_same(ours, speak(model, batch, seed, plain=True, noisy=noisy, speakers=speakers))


def test_the_engine_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would compare the plain mirror with itself."""
    model = build(torch.float32)
    assert native.obstacle(model) is None
    monkeypatch.setattr(Mirror, "step", lambda *_: pytest.fail("stepped through the modules"))
    speak(model)


@settings(max_examples=12, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax"]),
    precision=st.sampled_from(sorted(kernel.TYPES)),
    order=st.permutations(range(9)),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_neither_batch_nor_order_nor_threads_change_a_bit(
    attention: str, precision: str, order: list[int], places: dict[str, object], seed: int
) -> None:
    model = build(torch.float32, seed, attention=attention, reduction_factor=2, **places)
    symbols, lengths = texts(9, seed)
    who, limit = torch.arange(9) * 7919, torch.full((9,), 25)

    def run(rows: list[int]) -> FreeRun:
        return Mirror(model).free_run(
            symbols[rows, : int(lengths[rows].max())],
            lengths[rows],
            limit[rows],
            noise=PrenetNoise(seed, who[rows]),
            stop_threshold=0.6,
            precision=precision,
        )

    together = run(order)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = run(order)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together.mel, again.mel)
    for place, number in enumerate(order):
        alone = run([number])
        count = int(alone.lengths[0])
        assert together.lengths[place] == count
        assert torch.equal(together.mel[place, :count], alone.mel[0, :count])
        assert torch.equal(together.stop_probability[place, :count], alone.stop_probability[0])


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_small_weights_change_the_frames_a_little(precision: str) -> None:
    model = build(torch.float32, reduction_factor=2, width=64)
    limit = torch.full((5,), 12)
    exact = speak(model, limit=limit, plain=True).mel_before
    rounded = speak(model, limit=limit, precision=precision).mel_before
    assert exact.shape == rounded.shape
    error = float((rounded - exact).square().mean().sqrt() / exact.std())
    assert 1e-5 < error < 0.02


def test_strides_and_types_of_what_is_given_do_not_matter() -> None:
    model = build(torch.float32)
    symbols, lengths = texts(5, 0)
    who, limit = torch.arange(5) * 3, torch.tensor([9, 4, 7, 7, 2])
    options = {"stop_threshold": 0.9}
    with torch.no_grad():
        for norm in (model.decoder_norm, model.encoder_norm):
            norm.weight.uniform_()
    usual = Mirror(model).free_run(symbols, lengths, limit, noise=PrenetNoise(1, who), **options)
    # the same numbers, every second one of an array
    for layer in (model.decoder_norm, model.encoder_norm, model.mel_out, model.stop_out):
        for name in ("weight", "bias"):
            value = getattr(layer, name).detach()
            apart = torch.stack([value, torch.full_like(value, 9.0)], -1)[..., 0]
            assert not apart.is_contiguous() or value.numel() == 1
            setattr(layer, name, nn.Parameter(apart))
    odd = Mirror(model).free_run(
        symbols.repeat_interleave(2, 0)[::2],
        lengths.to(torch.int32),
        limit.to(torch.int32),
        noise=PrenetNoise(1, who.repeat_interleave(2)[::2]),
        **options,
    )
    assert torch.equal(odd.mel, usual.mel) and torch.equal(odd.lengths, usual.lengths)


@pytest.mark.parametrize("group", [1, 2, 64])
def test_groups_of_any_size_give_the_same(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(torch.float32)
    whole = speak(model)
    monkeypatch.setattr(native, "GROUP_SIZE", group)
    monkeypatch.setattr(native_rows, "GROUP_ROWS", group)
    sizes: list[list[int]] = []
    inner = native.FreeRunner

    def watch(program: object, order: Tensor, groups: list[int], *rest: object) -> object:
        sizes.append(groups)
        return inner(program, order, groups, *rest)

    monkeypatch.setattr(native, "FreeRunner", watch)
    assert torch.equal(speak(model).mel, whole.mel)
    assert [max(groups) for groups in sizes] == [min(group, 5)]


def test_long_runs_come_back_to_python_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = build(torch.float32), []
    advance = kernel.FreeRunner.advance
    monkeypatch.setattr(
        kernel.FreeRunner,
        "advance",
        lambda self, steps: calls.append(steps) or advance(self, steps),
    )
    with torch.no_grad():
        model.stop_out.bias.fill_(-50)
    run = speak(model, limit=torch.tensor([3, 500, 70, 1, 8]))
    assert run.lengths.tolist() == [3, 500, 70, 1, 8]
    assert not run.stopped.any()
    assert max(calls) <= native.STEPS_A_CALL
    assert_same(run, speak(model, limit=torch.tensor([3, 500, 70, 1, 8]), plain=True), 1e-4)


def test_alignments_and_postnet_are_left_out_when_not_wanted() -> None:
    model = build(torch.float32)
    run = speak(model, alignments=False, refine=False)
    assert run.alignments.shape[1] == 0
    assert torch.equal(run.mel, run.mel_before)
    torch.testing.assert_close(run.mel_before, speak(model).mel_before)


class Doubled(nn.Linear):
    """A layer with a will of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _another_layer(model: TransformerTTS) -> None:
    twin = Doubled(16, 16)
    twin.load_state_dict(model.decoder[0].cross.out.state_dict())
    model.decoder[0].cross.out = twin


def _a_hook(model: TransformerTTS) -> None:
    model.decoder[1].feedforward.register_forward_hook(lambda module, inputs, out: out * 2)


def _a_parametrisation(model: TransformerTTS) -> None:
    nn.utils.parametrizations.weight_norm(model.mel_out)


@pytest.mark.parametrize("change", [_another_layer, _a_hook, _a_parametrisation])
def test_a_changed_model_is_run_by_its_own_modules_and_that_is_said(
    change: object, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(torch.float32)
    before = speak(model, plain=True)
    change(model)
    _say_once.cache_clear()
    with caplog.at_level(logging.INFO):
        after = speak(model, precision="int8")
    assert torch.equal(after.mel, speak(model, plain=True).mel)
    if change is not _a_parametrisation:  # which changes nothing by itself
        assert not torch.equal(after.mel, before.mel)
    assert "free-running by the modules themselves" in caplog.text
    assert "int8" in caplog.text


def test_modules_that_were_asked_for_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    _say_once.cache_clear()
    with caplog.at_level(logging.INFO):
        speak(build(torch.float32), plain=True)
    assert "by the modules themselves" not in caplog.text


def test_a_text_without_symbols_does_not_crash() -> None:
    model = build(torch.float32)
    run = Mirror(model).free_run(
        torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 0]), torch.tensor([4, 4])
    )
    assert run.mel.isfinite().all()


def test_frames_that_are_not_numbers_end_at_the_limit() -> None:
    model = build(torch.float32)
    with torch.no_grad():
        model.mel_out.bias[0] = float("nan")
        model.stop_out.bias.fill_(float("nan"))
    run = speak(model, limit=torch.tensor([3, 9, 7, 1, 8]))
    assert run.lengths.tolist() == [3, 9, 7, 1, 8]
    assert not run.stopped.any()
    assert run.mel_before[0, 0, 0].isnan()
    assert run.mel_before[0, 2].isnan().all(), "what was fed back spreads"
