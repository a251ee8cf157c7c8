"""Tacotron 2 under the harness: all methods step, a stopped run goes on to the bit."""

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from profforce.config import MethodConfig, MethodName, ModelKind, TrainConfig, TrainerPrecision
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.models.tacotron2 import Tacotron2
from profforce.nn.noise import PrenetNoise
from profforce.training.gap import fixed_sentences, measure_gap
from profforce.training.logs import Report
from profforce.training.passes import teacher_forced
from profforce.training.run import train
from profforce.training.state import TrainState
from profforce.training.transfer import init_from

CPU = torch.device("cpu")


@pytest.fixture
def recurrent(config: TrainConfig) -> TrainConfig:
    """The small settings of the other tests with the other network."""
    model = replace(config.model, kind=ModelKind.tacotron2, attention_width=8, location_channels=2)
    return replace(config, model=model)


def with_method(config: TrainConfig, **changes: object) -> TrainConfig:
    return replace(config, method=replace(config.method, **changes))


def stop_at(step: int) -> object:
    def report(seen: Report) -> None:
        if seen.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return report


def weights_of(run: Path) -> dict[str, Tensor]:
    state = torch.load(run / "train_state.pt", weights_only=True)
    return {**state["model"], **{f"judge.{k}": v for k, v in state["discriminator"].items()}}


def test_professor_forcing_trains_and_resumes_to_the_bit(
    recurrent: TrainConfig, tmp_path: Path
) -> None:
    config = with_method(recurrent, weight=0.05, imitation_weight=1.0, attention_weight=0.5)
    trainer = replace(config.trainer, steps=7, evaluate_every=7, checkpoint_every=7)
    config = replace(config, trainer=trainer)
    train(config, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(config, tmp_path / "parts", report=stop_at(4))  # type: ignore[arg-type]
    train(config, tmp_path / "parts", resume=True)
    whole, parts = (find_checkpoint(tmp_path / name, "last") for name in ("whole", "parts"))
    a, b = weights_of(whole), weights_of(parts)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").open()]
    seen = {name for row in rows for name in row}
    assert {"gan/free_running", "imitation/mel", "imitation/attention", "gap/dtw_ratio"} <= seen
    model, _ = load_model(whole, CPU)
    assert isinstance(model, Tacotron2)


@pytest.mark.parametrize(
    "method",
    [
        {"name": MethodName.teacher_forcing},
        {"weight": 0.1, "teacher_weight": 0.1, "matching_weight": 0.1, "imitation_weight": 0.0},
        {"weight": 0.0, "imitation_weight": 1.0, "attention_weight": 1.0},
    ],
    ids=["teacher_forcing", "adversary", "imitation"],
)
def test_every_parameter_learns(
    recurrent: TrainConfig, tmp_path: Path, method: dict[str, Any], corpus: Corpus
) -> None:
    trainer = replace(recurrent.trainer, steps=2, evaluate_every=2, checkpoint_every=2)
    always = {"start_step": 0, "interval": 1, "ramp_steps": 0, "gate_low": 0.0, "gate_high": 1.0}
    settings = MethodConfig(**{"name": MethodName.professor_forcing, **always, **method})
    config = replace(recurrent, method=settings, trainer=trainer)
    train(config, tmp_path / "run")
    fresh = TrainState(config, corpus, CPU).model.state_dict()
    learned = torch.load(
        find_checkpoint(tmp_path / "run", "last") / "train_state.pt", weights_only=True
    )["model"]
    same = [name for name in fresh if torch.equal(fresh[name], learned[name])]
    assert same == []


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_precision_keeps_the_recurrence_exact(
    recurrent: TrainConfig, corpus: Corpus, half: str
) -> None:
    trainer = replace(recurrent.trainer, precision=TrainerPrecision(half), input_noise=0.0)
    model = replace(recurrent.model, dropout=0.0, encoder_conv_layers=0, prenet_dropout=0.0)
    state = TrainState(replace(recurrent, trainer=trainer, model=model), corpus, CPU)
    state.set_mel_statistics()
    batch = fixed_sentences(corpus.valid, 2)
    noise = PrenetNoise(0, torch.arange(2))
    truth = teacher_forced(state.model.eval(), batch, noise)
    passed = teacher_forced(state.model.train(), batch, noise)
    assert passed.mel.dtype == torch.float32
    assert torch.equal(passed.hidden, truth.hidden)  # half would be off by a thousandth
    assert torch.equal(passed.alignments, truth.alignments)
    assert not torch.equal(passed.mel, truth.mel)  # the postnet's convolutions are in half
    torch.testing.assert_close(passed.mel, truth.mel, rtol=0.05, atol=0.05)


def test_the_gap_meter_reads_it(recurrent: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(recurrent, corpus, CPU)
    state.set_mel_statistics()
    batch = fixed_sentences(corpus.valid, 2)
    reading = measure_gap(state.model, batch, recurrent.freerun)
    assert reading.free_running.alignments.shape[1] == 1
    assert all(torch.isfinite(torch.tensor(value)) for value in reading.scalars.values())


def test_settings_that_came_later_do_not_keep_an_old_run_from_going_on(
    config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    state = TrainState(config, corpus, CPU)
    path = state.save(tmp_path)
    file = path / "meta.json"
    meta = json.loads(file.read_text())
    for name in ("kind", "attention_width", "location_channels", "location_kernel"):
        del meta["model"][name]
    file.write_text(json.dumps(meta))
    TrainState(config, corpus, CPU).load(path)
    meta["model"]["width"] = 8
    file.write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"model settings differ.*got width 8 != 16;"):
        TrainState(config, corpus, CPU).load(path)


def test_what_the_network_cannot_do_is_refused_before_the_first_step(
    recurrent: TrainConfig, corpus: Corpus
) -> None:
    with pytest.raises(UserError, match=r"use method=professor_forcing"):
        through = with_method(recurrent, name=MethodName.through_time, imitation_weight=0.0)
        TrainState(through, corpus, CPU)
    segments = replace(recurrent.trainer, segment_steps=4)
    with pytest.raises(UserError, match=r"trainer.recompute_activations=true"):
        TrainState(replace(recurrent, trainer=segments), corpus, CPU)


def test_weights_of_another_kind_are_no_start(
    config: TrainConfig, recurrent: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    TrainState(config, corpus, CPU).save(tmp_path)
    model = TrainState(recurrent, corpus, CPU).model
    with pytest.raises(UserError, match=r"got model.kind=transformer; expected model.kind=tacotr"):
        init_from(model, corpus, tmp_path)
    TrainState(recurrent, corpus, CPU).save(tmp_path / "alike")
    init_from(model, corpus, tmp_path / "alike")
    assert asdict(model.config) == asdict(recurrent.model)


@pytest.mark.parametrize("kind", ["tacotron2", "softmax", "linear"])
def test_only_what_has_linear_attention_asks_for_its_code(
    config: TrainConfig, corpus: Corpus, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"kind": ModelKind.tacotron2} if kind == "tacotron2" else {"attention": kind}
    asked = []
    monkeypatch.setattr(
        "profforce.training.state.kernel_in_use", lambda device: asked.append(device) or "C++, here"
    )
    model = replace(config.model, **changes)  # type: ignore[arg-type]
    state = TrainState(replace(config, model=model), corpus, CPU)
    assert state._circumstances()["attention"] == ("C++" if kind == "linear" else "")
    assert len(asked) == (kind == "linear")
