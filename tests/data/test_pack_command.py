"""``profforce data pack`` and training from what it made, by the command line."""

import json
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
