"""A run that starts from the weights of another takes what fits, and says what."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profforce.config import TextConfig, TrainConfig
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.models.checkpoint import load_model
from profforce.text.tokenizer import Tokenizer
from profforce.training.run import train
from profforce.training.state import TrainState
from profforce.training.transfer import _take_rows

CPU = torch.device("cpu")


def fresh(config: TrainConfig, corpus: Corpus, source: Path | None = None) -> TrainState:
    named = None if source is None else str(source)
    return TrainState(replace(config, seed=config.seed + 1, init_from=named), corpus, CPU)


@pytest.fixture
def source(config: TrainConfig, corpus: Corpus, tmp_path: Path) -> Path:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.model.mel_mean.add_(0.25)  # the normalisation belongs to the weights
    state.save(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize("inside", ["", "checkpoints/step-0"], ids=["run", "checkpoint"])
def test_everything_that_fits_is_taken_and_nothing_else_of_the_run(
    config: TrainConfig,
    corpus: Corpus,
    source: Path,
    caplog: pytest.LogCaptureFixture,
    inside: str,
) -> None:
    state = fresh(config, corpus, source / inside)
    with caplog.at_level(logging.INFO):
        state.begin()
    there, _ = load_model(source / "checkpoints/step-0", CPU)
    for model in (state.model, state.sampling_model):
        for name, value in model.state_dict().items():
            assert torch.equal(value, there.state_dict()[name]), name
    number = len(there.state_dict())
    assert (
        caplog.messages[-1] == f"{number} of {number} tensors from {source / 'checkpoints/step-0'}"
    )
    assert state.step == state.batches_drawn == 0 and not state.optimizer.state


def test_an_embedding_is_taken_by_symbol(
    config: TrainConfig, corpus: Corpus, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = corpus.tokenizer.symbols
    new = (*old[:2], "\u00df", *reversed(old[3:]))
    other = replace(corpus, tokenizer=Tokenizer(TextConfig(), new))
    state = fresh(config, other, source)
    before = state.model.embedding.weight.clone()
    with caplog.at_level(logging.INFO):
        state.begin()
    there, _ = load_model(source / "checkpoints/step-0", CPU)
    for row, symbol in enumerate(new):
        wanted = before[row] if symbol not in old else there.embedding.weight[old.index(symbol)]
        assert torch.equal(state.model.embedding.weight[row], wanted), symbol
    assert f"{len(new) - 1} of {len(new)} symbols known there" in caplog.messages[-1]


@given(old=st.permutations("abcdef"), new=st.lists(st.sampled_from("abcxyz"), unique=True))
def test_rows_follow_their_names(old: list[str], new: list[str]) -> None:
    value = torch.arange(6.0)[:, None].expand(6, 2)
    target = torch.full((len(new), 2), -1.0)
    shared = sum(name in old for name in new)
    assert _take_rows(target, value, old, new) == shared
    wanted = [old.index(name) if name in old else -1 for name in new]
    assert target.tolist() == [[w, w] for w in wanted]


def test_another_reduction_factor_leaves_frame_sized_layers_fresh(
    config: TrainConfig, corpus: Corpus, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(config, model=replace(config.model, reduction_factor=2))
    state = fresh(config, corpus, source)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    with caplog.at_level(logging.INFO):
        state.begin()
    there = load_model(source / "checkpoints/step-0", CPU)[0].state_dict()
    kept = {
        name for name, value in state.model.state_dict().items() if value.shape != there[name].shape
    }
    assert {"mel_out.weight", "stop_out.weight"} <= kept and len(kept) == 5
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, before[name] if name in kept else there[name]), name
    assert "\n" not in caplog.messages[-1]
    assert "mel_out.weight [80, 16] there, [40, 16] here" in caplog.messages[-1]


def test_layers_that_only_one_side_has_are_named(
    config: TrainConfig, corpus: Corpus, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = replace(config.model, encoder_layers=2, encoder_conv_layers=0)
    state = fresh(replace(config, model=sizes), corpus, source)
    with caplog.at_level(logging.INFO):
        state.begin()
    line = caplog.messages[-1]
    assert "left out: encoder_conv." in line and "fresh: encoder.1." in line and "more" in line


@pytest.mark.parametrize("what", ["mel", "width", "nothing", "damaged"])
def test_what_cannot_be_taken_is_one_line_and_changes_nothing(
    config: TrainConfig, corpus: Corpus, source: Path, what: str
) -> None:
    message = {
        "mel": r"another mel definition; got hop_length 256 != 128",
        "width": "another width.*got width 16; expected width 32; set model.width=16",
        "nothing": "no such run folder",
        "damaged": "weights of a checkpoint damaged",
    }
    if what == "mel":
        corpus = replace(corpus, mel=replace(corpus.mel, hop_length=128))
    if what == "width":
        config = replace(config, model=replace(config.model, width=32))
    if what == "nothing":
        shutil.rmtree(source)
    if what == "damaged":
        file = source / "checkpoints/step-0/model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    state = fresh(config, corpus, source)
    state.set_mel_statistics()
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    with pytest.raises(UserError, match=message[what]) as err:
        state.begin()
    assert "\n" not in str(err.value)
    assert all(torch.equal(before[n], v) for n, v in state.model.state_dict().items())


def test_a_new_run_starts_there_and_its_resume_needs_it_no_more(
    config: TrainConfig, source: Path, run_dir: Path
) -> None:
    config = replace(config, init_from=str(source))
    first = replace(config, trainer=replace(config.trainer, steps=1, lr=1e-12, min_lr=0.0))
    train(first, run_dir)
    there, _ = load_model(source / "checkpoints/step-0", CPU)
    made, _ = load_model(run_dir / "checkpoints/step-1", CPU)
    for name, value in there.state_dict().items():
        torch.testing.assert_close(made.state_dict()[name], value, atol=1e-9, rtol=1e-5)
    shutil.rmtree(source)
    train(replace(config, trainer=replace(config.trainer, steps=2)), run_dir, resume=True)
    meta = json.loads((run_dir / "checkpoints/step-2/meta.json").read_text())
    assert meta["step"] == 2
