"""Training with ``method=through_time`` and with ``trainer.segment_steps``."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from profforce.config import MethodName, TrainConfig
from profforce.data.batch import collate
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.nn.noise import PrenetNoise
from profforce.training.gates import ForcingWeights
from profforce.training.run import train
from profforce.training.seeds import generator
from profforce.training.state import TrainState
from profforce.training.step import differentiate, professor_forcing_step

CPU = torch.device("cpu")


@pytest.fixture
def through_time(config: TrainConfig) -> TrainConfig:
    method = replace(config.method, name=MethodName.through_time, imitation_weight=0.0)
    freerun = replace(config.freerun, max_length_ratio=0.5)  # short runs, for speed
    return replace(config, method=method, freerun=freerun)


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k[:5] not in ("time/", "mem/p")} for row in rows]


def step_gradients(
    config: TrainConfig, corpus: Corpus, weights: ForcingWeights
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    with torch.no_grad():
        state.model.stop_out.bias.fill_(-9)  # untrained it would stop after a frame
    batch = collate([corpus.train[i] for i in range(4)])
    losses = professor_forcing_step(
        state.model,
        state.discriminator,
        state.control,
        batch,
        state.texts_to_speak(state.choose_texts(0), 0),
        noise=PrenetNoise(0, batch.indices),
        weights=weights,
        judge_learns=True,
        crop_generator=generator(0, "crop", 0),
        config=config,
    )
    *own, judged = losses
    scalars = differentiate(own)
    assert all(p.grad is None for p in state.judges.parameters())
    scalars |= differentiate([judged])
    assert all(p.grad is not None for p in state.judges.parameters())
    grads = {n: p.grad for n, p in state.model.named_parameters() if p.grad is not None}
    return grads, scalars


def test_the_discriminator_s_gradient_reaches_the_model_through_the_run(
    through_time: TrainConfig, corpus: Corpus
) -> None:
    shut, _ = step_gradients(through_time, corpus, ForcingWeights())
    opened, scalars = step_gradients(through_time, corpus, ForcingWeights(free=1))
    for name in ("prenet.layers.0.weight", "decoder.0.attention.qkv.weight", "mel_out.weight"):
        assert float((shut[name] - opened[name]).norm()) > 1e-3 * float(shut[name].norm()), name
    assert float(scalars["free/stopped_fraction"]) == 0
    assert float(scalars["free/length_ratio"]) == pytest.approx(0.5, abs=0.03)
    assert float(scalars["gan/length_only_accuracy"]) == 0.5


def test_recomputation_changes_no_gradient_of_the_step(
    through_time: TrainConfig, corpus: Corpus
) -> None:
    plain, _ = step_gradients(through_time, corpus, ForcingWeights(free=1))
    method = replace(through_time.method, recompute_steps=3)
    again, _ = step_gradients(replace(through_time, method=method), corpus, ForcingWeights(free=1))
    for name, grad in plain.items():
        torch.testing.assert_close(again[name], grad, rtol=1e-4, atol=1e-6, msg=name)


def test_every_step_speaks_other_texts_and_a_step_the_same(
    through_time: TrainConfig, corpus: Corpus
) -> None:
    state = TrainState(through_time, corpus, CPU)
    first, again, other = (
        state.texts_to_speak(state.choose_texts(number), number) for number in (5, 5, 6)
    )
    assert torch.equal(first.batch.indices, again.batch.indices)
    assert first.noise.seed == again.noise.seed != other.noise.seed
    assert not torch.equal(first.batch.indices, other.batch.indices)
    assert len(first.batch) == len(set(first.batch.indices.tolist())) == 4
    assert not state.forces
    state.step = through_time.method.start_step
    assert state.forces


class StopAt:
    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, report: Any) -> None:
        if report.step == self.step:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("which", ["through_time", "segments"])
def test_it_trains_and_a_resumed_run_repeats_the_uninterrupted_one_to_the_bit(
    config: TrainConfig, through_time: TrainConfig, run_dir: Path, which: str
) -> None:
    if which == "through_time":
        method = replace(through_time.method, recompute_steps=4)
        changed = replace(through_time, method=method)
        trainer = replace(config.trainer, steps=6, evaluate_every=6)
    else:
        changed = config
        trainer = replace(config.trainer, steps=6, evaluate_every=6, segment_steps=7)
    changed = replace(changed, trainer=trainer)
    train(changed, run_dir / "whole")
    with pytest.raises(SystemExit):
        train(changed, run_dir / "parts", report=StopAt(4))
    train(changed, run_dir / "parts", resume=True)
    rows = metrics(run_dir / "whole")
    assert rows == metrics(run_dir / "parts")
    weights = [
        (run_dir / part / "checkpoints/step-6/model.safetensors").read_bytes()
        for part in ("whole", "parts")
    ]
    assert weights[0] == weights[1]
    if which == "through_time":
        spoken = [row for row in rows if "free/length_ratio" in row]
        assert [row["step"] for row in spoken] == [3, 4, 5, 6]
        assert all("gan/accuracy_average" in row and "gan/weight" in row for row in spoken)
        assert not any(name.startswith("pool/") for row in rows for name in row)


def test_segments_give_the_losses_of_the_plain_step(config: TrainConfig, run_dir: Path) -> None:
    """Without dropout, whose draws differ."""
    found = []
    for segment_steps in (None, 5):
        model = replace(config.model, dropout=0.0)
        trainer = replace(config.trainer, steps=3, evaluate_every=9, segment_steps=segment_steps)
        folder = run_dir / str(segment_steps)
        train(replace(config, model=model, trainer=trainer), folder)
        found.append([row for row in metrics(folder) if "loss/total" in row])
    for plain, segmented in zip(*found, strict=True):
        for name in ("loss/total", "loss/gradient_norm", "gan/discriminator"):
            if name in plain:
                assert segmented[name] == pytest.approx(plain[name], rel=1e-3), name


def test_segments_of_softmax_attention_are_refused(config: TrainConfig, run_dir: Path) -> None:
    model = replace(config.model, attention="softmax")
    trainer = replace(config.trainer, segment_steps=8)
    with pytest.raises(UserError, match=r"trainer\.segment_steps"):
        train(replace(config, model=model, trainer=trainer), run_dir)
