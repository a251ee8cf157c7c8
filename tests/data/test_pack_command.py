"""``profforce data pack`` and training from what it made, by the command line."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profforce.app import app
from tests.data.conftest import MakeCorpus

TEXTS = ["sentence one.", "sentence two.", "sentence three.", "sentence four.", "a fifth one."]
RUN = CliRunner()


def test_pack_says_how_to_train(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS)
    out = tmp_path / "tars"
    words = ["data", "pack", f"data.root={root}", "--out", str(out), "--samples", "2"]
    result = RUN.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert f"data.shards={out}" in result.stdout and "5 utterances in 3 tar files" in result.stdout
    assert len(list(out.glob("*.tar"))) == 3


def test_pack_reports_as_json(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS)
    words = ["data", "pack", f"data.root={root}", "--out", str(tmp_path / "tars"), "--json"]
    report = json.loads(RUN.invoke(app, words).stdout)
    assert (report["num_utterances"], report["num_shards"]) == (5, 1)


@pytest.mark.parametrize("bad", ["--samples=0", "data.root=/none"])
def test_mistakes_are_one_line(make_corpus: MakeCorpus, tmp_path: Path, bad: str) -> None:
    from profforce.errors import UserError

    root = make_corpus(TEXTS)
    words = ["data", "pack", f"data.root={root}", "--out", str(tmp_path / "tars"), bad]
    result = RUN.invoke(app, words)
    assert isinstance(result.exception, UserError) and "\n" not in str(result.exception)


def test_check_does_not_look_into_tar_files(tmp_path: Path) -> None:
    from profforce.errors import UserError

    result = RUN.invoke(app, ["data", "check", "data=custom", f"data.shards={tmp_path}"])
    assert isinstance(result.exception, UserError)
    assert "check a corpus before it is packed" in str(result.exception)


def test_tar_files_need_no_root(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    from profforce.bridge import compose
    from profforce.config import TrainConfig

    config = compose(TrainConfig, "train", ["data=custom", f"data.shards={tmp_path}"])
    assert config.data.root == config.data.shards == str(tmp_path)


def test_of_two_that_pack_at_once_one_is_refused_and_leaves_nothing(
    make_corpus: MakeCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profforce.config import DataConfig, MelConfig
    from profforce.data.webdata_pack import pack
    from profforce.errors import UserError

    data, out = DataConfig(root=str(make_corpus(TEXTS))), tmp_path / "tars"

    def other(label: str, done: int, total: int) -> None:
        if done == 2:
            monkeypatch.setattr(os, "getpid", lambda: 1)  # as another process
            pack(data, MelConfig(), out, samples=3, seed=0)

    with pytest.raises(UserError, match="holds tar files already"):
        pack(data, MelConfig(), out, samples=2, seed=0, progress=other)
    assert sorted(path.name for path in out.iterdir()) == ["shard-000000.tar", "shard-000001.tar"]


def test_audio_that_cannot_be_read_is_one_line(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    from profforce.config import DataConfig, MelConfig
    from profforce.data import webdata_pack
    from profforce.errors import UserError

    root = make_corpus(TEXTS)

    def unreadable(label: str, done: int, total: int) -> None:
        for wav in root.rglob("*.wav"):
            if wav.is_file():
                wav.unlink()
                wav.mkdir()

    with pytest.raises(UserError, match=r"\.wav: cannot read the audio file; got Is a directory"):
        webdata_pack.pack(
            DataConfig(root=str(root)),
            MelConfig(),
            tmp_path / "tars",
            samples=1,
            seed=0,
            progress=unreadable,
        )
    assert not list((tmp_path / "tars").iterdir())
