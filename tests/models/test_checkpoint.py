"""Checkpoints: whole or absent, readable without pickle, clear about what is wrong."""

import json
from pathlib import Path

import pytest
import torch

from profforce.config import MelConfig, ModelConfig, TextConfig
from profforce.errors import UserError
from profforce.models.checkpoint import (
    checkpoint_meta,
    find_checkpoint,
    list_checkpoints,
    load_model,
    load_train_state,
    prune,
    save_checkpoint,
)
from profforce.models.transformer import TransformerTTS
from profforce.text.tokenizer import Tokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> TransformerTTS:
    torch.manual_seed(0)
    config = ModelConfig(width=8, num_heads=2, encoder_layers=1, decoder_layers=2, postnet_layers=0)
    return TransformerTTS(config, len(Tokenizer(TextConfig()).symbols), MelConfig().num_mels)


def save(run: Path, step: int, model: TransformerTTS, score: float | None = None) -> Path:
    meta = checkpoint_meta(model, MelConfig(), Tokenizer(TextConfig()), ())
    state = {"step": step, "nested": [torch.ones(2), {"a": 1.5}]}
    return save_checkpoint(
        run / "checkpoints", step, model.state_dict(), state, {**meta, "score": score}
    )


def test_round_trip(tmp_path: Path, model: TransformerTTS) -> None:
    path = save(tmp_path, 7, model)
    loaded, meta = load_model(path, CPU)
    assert meta["step"] == 7 and loaded.config == model.config and not loaded.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    assert load_train_state(path, CPU)["nested"][1] == {"a": 1.5}
    assert {p.name for p in path.parent.iterdir()} == {"step-7"}


def test_writing_a_step_again_replaces_it(tmp_path: Path, model: TransformerTTS) -> None:
    save(tmp_path, 7, model, 1.0)
    path = save(tmp_path, 7, model, 2.0)
    assert json.loads((path / "meta.json").read_text())["score"] == 2.0
    assert {p.name for p in path.parent.iterdir()} == {"step-7"}


def test_a_half_written_checkpoint_is_never_seen(
    tmp_path: Path, model: TransformerTTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, model)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            save(tmp_path, 2, model)
    assert [step for step, _ in list_checkpoints(tmp_path / "checkpoints")] == [1]
    assert find_checkpoint(tmp_path, "last").name == "step-1"
    save(tmp_path, 2, model)
    assert find_checkpoint(tmp_path, "last").name == "step-2"


def test_last_best_and_named(tmp_path: Path, model: TransformerTTS) -> None:
    for step, score in ((1, 0.5), (2, 0.2), (9, 0.9), (10, None)):
        save(tmp_path, step, model, score)
    assert find_checkpoint(tmp_path, "last").name == "step-10"
    assert find_checkpoint(tmp_path, "best").name == "step-2"
    assert find_checkpoint(tmp_path, "step-9").name == "step-9"
    with pytest.raises(UserError, match=r"no checkpoint 'step-3'.*expected last, best or step-1"):
        find_checkpoint(tmp_path, "step-3")
    prune(tmp_path / "checkpoints", keep_last=1, keep_best=1)
    assert [step for step, _ in list_checkpoints(tmp_path / "checkpoints")] == [2, 10]


def test_damage_is_named_and_the_one_before_is_used(
    tmp_path: Path, model: TransformerTTS, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, model)
    broken = save(tmp_path, 2, model)
    (broken / "meta.json").write_text("{")
    assert find_checkpoint(tmp_path, "last").name == "step-1"
    assert "step-2 is not a whole checkpoint" in caplog.text


@pytest.mark.parametrize("file", ["model.safetensors", "train_state.pt"])
def test_a_truncated_file_is_one_line(tmp_path: Path, model: TransformerTTS, file: str) -> None:
    path = save(tmp_path, 1, model)
    whole = (path / file).read_bytes()
    (path / file).write_bytes(whole[: len(whole) // 2])
    load = load_model if file == "model.safetensors" else load_train_state
    with pytest.raises(UserError, match="cannot be loaded") as err:
        load(path, CPU)
    assert "\n" not in str(err.value) and str(path) in str(err.value)


def test_foreign_checkpoints_and_missing_runs_are_refused(
    tmp_path: Path, model: TransformerTTS
) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        find_checkpoint(tmp_path / "nothing", "last")
    with pytest.raises(UserError, match="has no checkpoint"):
        find_checkpoint(tmp_path, "last")
    path = save(tmp_path, 1, model)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(UserError, match="another format; got 99; expected format 1"):
        load_model(path, CPU)
    (path / "meta.json").write_text(json.dumps({**meta, "model": {"layers": 3}}))
    with pytest.raises(UserError, match=r"cannot be loaded.*layers"):
        load_model(path, CPU)


def test_pickled_code_is_not_run(tmp_path: Path, model: TransformerTTS) -> None:
    path = save(tmp_path, 1, model)
    torch.save({"evil": Path}, path / "train_state.pt")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_train_state(path, CPU)
