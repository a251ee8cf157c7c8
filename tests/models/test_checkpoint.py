"""Checkpoints: whole or absent, readable without pickle, clear about what is wrong."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profforce.config import MelConfig, ModelConfig, TextConfig
from profforce.errors import UserError
from profforce.models.checkpoint import (
    DamagedCheckpointError,
    SaveError,
    checkpoint_meta,
    find_checkpoint,
    list_checkpoints,
    load_model,
    load_train_state,
    prune,
    recover,
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


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """What a full disk does to whoever writes, by the limit that the system knows."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
        with pytest.raises(SaveError, match="disk full"):
            save(tmp_path, 2, model)
    assert names(tmp_path) == {"step-1"}
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


def test_a_renamed_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, model: TransformerTTS, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, model)
    save(tmp_path, 2, model).rename(tmp_path / "checkpoints/step-7")
    assert find_checkpoint(tmp_path, "last").name == "step-1"
    assert "step-7 is not a whole checkpoint" in caplog.text and "says step 2" in caplog.text


def test_weights_that_are_not_those_written_are_not_loaded(
    tmp_path: Path, model: TransformerTTS
) -> None:
    path = save(tmp_path, 1, model)
    weights = bytearray((path / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # loads as well as any
    (path / "model.safetensors").write_bytes(weights)
    with pytest.raises(DamagedCheckpointError, match=r"got model.safetensors is not the file"):
        load_model(path, CPU)


@pytest.mark.parametrize("file", ["model.safetensors", "train_state.pt"])
def test_a_truncated_file_is_one_line(tmp_path: Path, model: TransformerTTS, file: str) -> None:
    path = save(tmp_path, 1, model)
    whole = (path / file).read_bytes()
    (path / file).write_bytes(whole[: len(whole) // 2])
    load = load_model if file == "model.safetensors" else load_train_state
    with pytest.raises(UserError, match="cannot be loaded") as err:
        load(path, CPU)
    assert "\n" not in str(err.value) and str(path) in str(err.value)


def test_a_resume_takes_the_last_whole_checkpoint_and_sets_newer_ones_aside(
    tmp_path: Path, model: TransformerTTS, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (9, 10, 11, 100):
        save(tmp_path, step, model)
    for step, file in ((100, "train_state.pt"), (11, "meta.json"), (10, "model.safetensors")):
        path = tmp_path / f"checkpoints/step-{step}" / file
        path.write_bytes(path.read_bytes()[:100])
    assert recover(tmp_path).name == "step-9"
    assert names(tmp_path) == {
        "step-9",
        ".step-10.damaged",
        ".step-11.damaged",
        ".step-100.damaged",
    }
    assert len(caplog.messages) == 3 and not any("\n" in line for line in caplog.messages)
    for step, line in zip((100, 11, 10), caplog.messages, strict=True):
        assert f"step-{step}" in line and line.endswith("set aside; resuming from step-9")
    caplog.clear()
    assert recover(tmp_path).name == "step-9" and not caplog.messages


@given(data=st.data(), file=st.sampled_from(["model.safetensors", "train_state.pt"]))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_changed_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, model: TransformerTTS, data: st.DataObject, file: str
) -> None:
    run = tmp_path_factory.mktemp("flip")
    path = save(run, 1, model) / file
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=file):
        recover(run)
    assert names(run) == {"step-1"}


def test_checkpoints_from_before_the_digests_are_still_resumed(
    tmp_path: Path, model: TransformerTTS
) -> None:
    for step in (1, 2):
        path = save(tmp_path, step, model) / "meta.json"
        meta = json.loads(path.read_text())
        del meta["sha256"]
        path.write_text(json.dumps(meta))
    assert recover(tmp_path).name == "step-2"
    state = tmp_path / "checkpoints/step-2/train_state.pt"
    state.write_bytes(state.read_bytes()[:500])
    assert recover(tmp_path).name == "step-1"


def test_another_format_is_refused_on_resume_and_left_alone(
    tmp_path: Path, model: TransformerTTS
) -> None:
    save(tmp_path, 1, model)
    path = save(tmp_path, 2, model) / "meta.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(UserError, match="another format"):
        recover(tmp_path)
    assert names(tmp_path) == {"step-1", "step-2"}


def test_reading_changes_nothing_in_a_folder(tmp_path: Path, model: TransformerTTS) -> None:
    save(tmp_path, 1, model, 0.5)
    save(tmp_path, 2, model)
    folder = tmp_path / "checkpoints"
    (folder / "step-2").rename(folder / ".step-2.replaced")
    (folder / "step-3").mkdir()
    before = everything(tmp_path)
    for which in ("last", "best", "step-1"):
        load_model(find_checkpoint(tmp_path, which), CPU)
    assert everything(tmp_path) == before
    assert recover(tmp_path).name == "step-2" and "step-2" in names(tmp_path)


@pytest.mark.parametrize("size", [64, 200_000], ids=["nothing-fits", "weights-fit"])
@pytest.mark.parametrize("step", [1, 2], ids=["same-step", "next-step"])
def test_a_disk_that_is_full_is_one_line_and_spares_what_there_was(
    tmp_path: Path, model: TransformerTTS, size: int, step: int
) -> None:
    save(tmp_path, 1, model, 0.5)
    before = everything(tmp_path)
    meta = checkpoint_meta(model, MelConfig(), Tokenizer(TextConfig()), ())
    state = {"large": torch.zeros(100_000)}
    with no_file_larger_than(size), pytest.raises(SaveError) as err:
        save_checkpoint(tmp_path / "checkpoints", step, model.state_dict(), state, meta)
    assert f"step-{step}: checkpoint cannot be written; got" in str(err.value)
    assert "\n" not in str(err.value)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["mkdir", "write_text", "replace"])
def test_whatever_fails_while_saving_leaves_the_one_before(
    tmp_path: Path,
    model: TransformerTTS,
    monkeypatch: pytest.MonkeyPatch,
    kind: int,
    call: str,
) -> None:
    save(tmp_path, 1, model, 0.5)
    before = everything(tmp_path)
    inner = getattr(Path, call)

    def fail(self: Path, *args: Any, **kwargs: Any) -> Any:
        if ".partial" in str(self):
            raise OSError(kind, os.strerror(kind))
        return inner(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fail)
        with pytest.raises(SaveError, match=os.strerror(kind)):
            save(tmp_path, 1, model, 0.7)
    assert everything(tmp_path) == before


def test_foreign_checkpoints_and_missing_runs_are_refused(
    tmp_path: Path, model: TransformerTTS
) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        find_checkpoint(tmp_path / "nothing", "last")
    (tmp_path / "runs" / "demo" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no such run folder; did you mean 'demo'\?"):
        find_checkpoint(tmp_path / "runs" / "dmeo", "last")
    with pytest.raises(UserError, match=r"no such run folder(?!; did)"):
        find_checkpoint(tmp_path / "run" / "demo", "last")
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
