"""Mixed precision: near float32, safe masks, float32 outputs, a scaled loss, resume to the bit."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import (
    MethodName,
    ModelConfig,
    PositionsKind,
    TrainConfig,
    TrainerPrecision,
)
from profforce.data.batch import collate, collate_texts
from profforce.data.corpus import Corpus
from profforce.kernels.ops import causal_linear_attention
from profforce.models.mirror import Mirror
from profforce.nn.attention import CrossAttention, EncoderSelfAttention
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.training.passes import teacher_forced
from profforce.training.precision import FIRST_SCALE, LossScale, half_type
from profforce.training.run import train
from profforce.training.state import TrainState
from tests.training.test_loop import StopAt, changed, same_checkpoint

CPU = torch.device("cpu")
HALF = [TrainerPrecision.bfloat16, TrainerPrecision.float16]
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def series(run: Path, name: str) -> list[float]:
    return [row[name] for row in rows(run) if name in row]


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("name", [MethodName.professor_forcing, MethodName.through_time])
def test_losses_are_near_those_of_float32(
    config: TrainConfig, tmp_path: Path, precision: TrainerPrecision, name: MethodName
) -> None:
    expert = 0.0 if name == MethodName.through_time else 0.5
    method = replace(config.method, name=name, weight=0.05, imitation_weight=expert)
    config = changed(replace(config, method=method), steps=6, evaluate_every=99)
    train(config, tmp_path / "float32")
    train(changed(config, precision=precision), tmp_path / "half")
    whole, half = (series(tmp_path / run, "loss/total") for run in ("float32", "half"))
    assert whole != half
    assert half == pytest.approx(whole, rel=0.03)


@pytest.mark.parametrize("precision", HALF)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(
    config: TrainConfig, tmp_path: Path, precision: TrainerPrecision
) -> None:
    config = changed(config, precision=precision)
    train(config, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(config, tmp_path / "parts", report=StopAt(5, signal.SIGTERM))
    train(config, tmp_path / "parts", resume=True)
    same_checkpoint(tmp_path / "whole/checkpoints/step-12", tmp_path / "parts/checkpoints/step-12")


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("changes", [{}, {"segment_steps": 3}, {"recompute_activations": True}])
def test_outputs_and_gradients_are_float32_and_readings_exact(
    config: TrainConfig, corpus: Corpus, precision: TrainerPrecision, changes: dict[str, Any]
) -> None:
    config = changed(config, precision=precision, **changes)
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    batch = collate([corpus.train[k] for k in range(4)])
    noise = PrenetNoise(1, batch.indices)
    out = teacher_forced(state.model.train(), batch, noise)
    assert {value.dtype for value in vars(out).values()} == {torch.float32}
    (out.mel.sum() + out.stop_logits.sum() + out.alignments.square().sum()).backward()
    for name, parameter in state.model.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name
        assert bool(parameter.grad.isfinite().all()), name
    plain = TrainState(changed(config, precision=TrainerPrecision.float32), corpus, CPU)
    plain.model.load_state_dict(state.model.state_dict())
    with torch.no_grad():
        reading = teacher_forced(state.model.eval(), batch, noise)
        exact = teacher_forced(plain.model.eval(), batch, noise)
    assert torch.equal(reading.mel, exact.mel)


def test_free_runs_do_not_know_of_it(config: TrainConfig, corpus: Corpus) -> None:
    states = [
        TrainState(changed(config, precision=precision), corpus, CPU)
        for precision in (TrainerPrecision.float32, TrainerPrecision.float16)
    ]
    mels = []
    for state in states:
        texts = collate_texts([corpus.train[0], corpus.train[1]])
        run = Mirror(state.model).free_run(
            texts.symbols, texts.symbol_lengths, torch.tensor([20, 24]), noise=None
        )
        mels.append(run.mel)
    assert torch.equal(*mels)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    half=st.sampled_from(["float32", "bfloat16", "float16"]),
    positions=st.sampled_from(list(PositionsKind)),
    size=st.sampled_from([1.0, 30.0]),
)
@settings(max_examples=60, deadline=None)
def test_masks_hold_in_every_type(
    lengths: list[int], half: str, positions: PositionsKind, size: float
) -> None:
    """Padding changes nothing, and rows that are padding throughout are numbers."""
    torch.manual_seed(0)
    config = ModelConfig(width=16, num_heads=2, positions=positions)
    encoder, cross = EncoderSelfAttention(config), CrossAttention(config)
    valid = torch.tensor(lengths)
    mask = length_mask(valid, 9)
    x = size * torch.randn(len(lengths), 9, 16)
    other = torch.where(mask[..., None], x, 7 * size * torch.randn_like(x))
    steps = torch.randn(len(lengths), 5, 16)
    with torch.autocast("cpu", dtype=TYPES.get(half), enabled=half in TYPES):
        first, second = (encoder(value, mask) for value in (x, other))
        read = [cross(steps, cross.memory(value, mask))[0] for value in (x, other)]
        weights = cross(steps, cross.memory(x, mask))[1]
    assert bool(first.isfinite().all() and read[0].isfinite().all() and weights.isfinite().all())
    assert torch.equal(first[mask], second[mask])
    some = valid > 0
    assert torch.equal(read[0][some], read[1][some])
    padded = ~mask[some][:, None, None].expand_as(weights[some])
    assert not bool(weights[some].masked_select(padded).any())


@pytest.mark.parametrize("half", list(TYPES))
def test_attention_sums_in_float32_under_autocast(half: str) -> None:
    """Autocast would round the products within the kernel that take the place of sums."""
    torch.manual_seed(0)
    kind = TYPES[half]
    q, k, v = (torch.randn(2, 300, 2, 24, dtype=kind).requires_grad_() for _ in range(3))
    plain, state = causal_linear_attention(q, k, v)
    grads = torch.autograd.grad(plain.float().square().sum(), (q, k, v))
    with torch.autocast("cpu", dtype=kind):
        out, after = causal_linear_attention(q, k, v)
        again = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    assert out.dtype == kind and after.s.dtype == torch.float32
    assert torch.equal(out, plain) and torch.equal(after.s, state.s)
    assert all(map(torch.equal, grads, again))


def test_an_overflow_is_the_scales_and_a_bad_batch_is_not() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)

    def step(scale: LossScale, gradient: float, loss: float) -> bool:
        scale.times(weight.sum()).backward()
        weight.grad = torch.tensor([gradient])
        scale.take_out([optimizer])
        assert weight.grad is not None
        taken = bool(weight.grad.isfinite().all())
        return scale.pass_on(taken=taken, loss=torch.tensor(loss))

    scale = LossScale(TrainerPrecision.float16, CPU)
    assert not step(scale, 1.0, 1.0) and scale.value == FIRST_SCALE
    assert step(scale, float("inf"), 1.0) and scale.value == FIRST_SCALE / 2
    assert not step(scale, float("nan"), float("nan")) and scale.value == FIRST_SCALE / 2
    assert scale.overflows == 1
    while scale.value > 1:
        assert step(scale, float("inf"), 1.0)
    assert not step(scale, float("inf"), 1.0)  # there is no scale left to blame
    again = LossScale(TrainerPrecision.float16, CPU)
    again.load_state_dict(scale.state_dict())
    assert (again.value, again.overflows) == (scale.value, scale.overflows)


def test_gradients_are_those_of_the_plain_loss() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    scale = LossScale(TrainerPrecision.float16, CPU)
    scale.times((3 * weight).sum()).backward()
    scale.take_out([torch.optim.SGD([weight], lr=0.0)])
    assert weight.grad is not None and weight.grad.tolist() == [3.0]


def test_overflows_are_counted_apart_and_do_not_end_a_run(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profforce.training.precision.FIRST_SCALE", 2.0**34)
    train(changed(config, precision=TrainerPrecision.float16, steps=12), tmp_path / "run")
    assert series(tmp_path / "run", "loss/skipped")[-1] == 0
    overflows = series(tmp_path / "run", "loss/overflows")
    assert overflows[-1] > 0 and series(tmp_path / "run", "loss/scale")[-1] < 2.0**34


def test_a_run_may_go_on_in_another_precision(
    config: TrainConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = changed(config, steps=4)
    train(config, tmp_path / "run")
    longer = changed(config, steps=6, precision=TrainerPrecision.float16)
    train(longer, tmp_path / "run", resume=True)
    assert "precision float32 -> float16" in caplog.text
    other = changed(longer, steps=8, precision=TrainerPrecision.bfloat16)
    train(other, tmp_path / "run", resume=True)


def test_a_gpu_without_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    from profforce.errors import UserError

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    with pytest.raises(UserError, match=r"bfloat16; got Old GPU; .*set trainer.precision=float16"):
        half_type(TrainerPrecision.bfloat16, torch.device("cuda"))
