"""Columns of a large corpus: kept, mapped, made anew when something they depend on changed."""

import json
import logging
import multiprocessing
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import DataConfig, MelConfig, TextConfig
from profforce.data import corpus as corpora
from profforce.data import table
from profforce.data.columns import Chosen, Column, Ragged, RaggedColumn, TextColumn, Texts, mapped
from profforce.data.corpus import Corpus, load_corpus
from profforce.errors import UserError
from tests.data.conftest import MakeCorpus

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEXTS = [f"sentence {word}." for word in NUMBERS]
Change = Any


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large begins at five utterances, looked at two at a time."""
    monkeypatch.setattr(table, "LARGE", 5)
    monkeypatch.setattr(table, "CHUNK", 2)
    monkeypatch.setattr("profforce.data.assemble.CHUNK", 2)


def load(root: Path, **changes: Change) -> Corpus:
    data = DataConfig(root=str(root), **{"valid_fraction": 0.4, **changes})
    return load_corpus(data, TextConfig(), MelConfig())


def same(a: Corpus, b: Corpus) -> None:
    assert a.fingerprint() == b.fingerprint() != ""
    assert (a.report, a.speakers) == (b.report, b.speakers)
    for ours, theirs in ((a.train, b.train), (a.valid, b.valid)):
        assert list(ours.utterances) == list(theirs.utterances)
        assert np.array_equal(ours.num_frames, theirs.num_frames)
        assert np.array_equal(ours.num_symbols, theirs.num_symbols)
        for k in range(len(ours)):
            x, y = ours[k], theirs[k]
            assert torch.equal(x.symbols, y.symbols) and torch.equal(x.mel, y.mel)
            assert (x.id, x.text, x.speaker) == (y.id, y.text, y.speaker)


def stores(root: Path) -> list[Path]:
    return sorted((root / "features").glob("*corpus-*"))


@given(st.lists(st.text()), st.integers(0, 5))
def test_texts_come_back(texts: list[str], cut: int) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    column = TextColumn()
    column.extend(texts[:cut])
    column.extend(texts[cut:])
    packed = Texts(column.content.array(), column.ends.array())
    assert list(packed) == texts and packed[1:3] == texts[1:3]
    assert [packed[k - len(texts)] for k in range(len(texts))] == texts


@given(st.lists(st.lists(st.integers(0, 300))), st.integers(0, 5))
def test_rows_come_back(rows: list[list[int]], cut: int) -> None:
    column = RaggedColumn(np.int16)
    column.extend(rows[:cut])
    column.extend(rows[cut:])
    packed = Ragged(column.content.array(), column.ends.array())
    assert [row.tolist() for row in packed] == rows
    assert packed.sizes().tolist() == [len(row) for row in rows]


@given(st.lists(st.lists(st.integers(-9, 9))), st.integers(0, 4))
@settings(deadline=None)
def test_a_column_may_go_on_in_a_file(parts: list[list[int]], after: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        column = Column(np.int32)
        for number, part in enumerate(parts):
            if number == after:
                column.to_file(Path(folder) / "c")
            column.extend(part)
        column.close()
        flat = [x for part in parts for x in part]
        found = mapped(Path(folder) / "c", np.int32) if after < len(parts) else column.array()
        assert found.tolist() == flat


@pytest.mark.usefixtures("large")
def test_a_large_corpus_equals_a_small_one(
    make_corpus: MakeCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_corpus([*TEXTS, "caf\u00e9 ~"])
    made, again = load(root), load(root)
    assert len(stores(root)) == 1
    monkeypatch.setattr(table, "LARGE", 99)
    shutil.rmtree(stores(root)[0])
    small = load(root)
    assert not stores(root)
    same(made, small)
    same(again, small)


@pytest.mark.usefixtures("large")
def test_the_second_time_no_line_is_read(
    make_corpus: MakeCorpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_corpus(TEXTS)
    first = load(root)
    monkeypatch.setattr(corpora, "Assembly", None)
    with caplog.at_level(logging.INFO):
        same(first, load(root))
    assert "not looked at again" in caplog.text


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("change", ["setting", "manifest", "text"])
def test_what_the_columns_depend_on_makes_new_ones(make_corpus: MakeCorpus, change: str) -> None:
    root = make_corpus(TEXTS)
    load(root)
    if change == "manifest":
        (root / "metadata.csv").write_text(
            "".join(f"u{k}|{text.upper()}\n" for k, text in enumerate(TEXTS))
        )
        assert load(root).train[0].symbols is not None
    elif change == "setting":
        load(root, num_utterances=7)
    else:
        data = DataConfig(root=str(root), valid_fraction=0.4)
        load_corpus(data, TextConfig(normalize=False), MelConfig())
    assert len(stores(root)) == 2


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("victim", ["meta.json", "mels", "column"])
def test_columns_that_are_not_whole_are_made_anew(make_corpus: MakeCorpus, victim: str) -> None:
    root = make_corpus(TEXTS)
    first = load(root)
    (store,) = stores(root)
    if victim == "mels":
        for shard in (root / "features").glob("mel-*/shard-*"):
            shard.unlink()
    else:
        (store / ("id.ends" if victim == "column" else victim)).unlink()
    same(first, load(root))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["text.content", "line", "symbols.ends", "train"])
@pytest.mark.parametrize("left", [0, 16], ids=["empty", "cut"])
def test_a_cut_column_is_named_and_made_anew(
    make_corpus: MakeCorpus, name: str, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As a machine that lost its power leaves it: shorter, by whole entries."""
    root = make_corpus(TEXTS)
    first = load(root)
    (store,) = stores(root)
    file = store / name
    whole = file.read_bytes()
    file.unlink()  # it is mapped
    file.write_bytes(whole[:left])
    same(first, load(root))
    assert f"is damaged ({name}); the corpus is read anew" in caplog.text
    assert file.read_bytes() == whole


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("text", ["[]", "null", '{"columns": {}}', '{"columns": []}', "{"])
def test_a_description_that_is_none_is_made_anew(make_corpus: MakeCorpus, text: str) -> None:
    root = make_corpus(TEXTS)
    first = load(root)
    (store,) = stores(root)
    (store / "meta.json").write_text(text)
    same(first, load(root))


@pytest.mark.usefixtures("large")
def test_a_defect_leaves_nothing(make_corpus: MakeCorpus) -> None:
    root = make_corpus([*TEXTS, "..."])
    with pytest.raises(UserError, match=r"metadata.csv:10: .*nothing to say"):
        load(root)
    assert not stores(root) and not list((root / "features").glob(".corpus*"))


@pytest.mark.usefixtures("large")
def test_the_same_id_twice_is_found_among_many(make_corpus: MakeCorpus) -> None:
    root = make_corpus(TEXTS)
    with (root / "metadata.csv").open("a") as file:
        file.write("wavs/u3.wav|Again\n")
    with pytest.raises(UserError, match=r"csv:10: the id 'u3' occurs twice; .*csv:4"):
        load(root)


@pytest.mark.usefixtures("large")
def test_a_worker_gets_paths_and_not_the_columns(make_corpus: MakeCorpus) -> None:
    root = make_corpus([f"{'very ' * 40}long sentence {k}." for k in range(20)], seconds=3.0)
    train = load(root).train
    raw = pickle.dumps(train)
    assert len(raw) < 3000
    copy = pickle.loads(raw)
    assert copy[3].text == train[3].text and torch.equal(copy[3].mel, train[3].mel)


def test_a_choice_of_a_sequence() -> None:
    chosen = Chosen("abcdef", np.array([4, 0, 2]))
    assert list(chosen) == ["e", "a", "c"] == [chosen[k] for k in range(len(chosen))]
    assert list(chosen[1:]) == ["a", "c"]


def _load_in_process(root: str, barrier: Any, results: Any) -> None:
    table.LARGE = 5
    barrier.wait()
    results.put(load(Path(root)).fingerprint())


@pytest.mark.slow
def test_two_runs_that_share_a_cache_may_begin_at_once(make_corpus: MakeCorpus) -> None:
    """Both make features and columns from nothing at the same time."""
    root = make_corpus(TEXTS)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    runs = [
        context.Process(target=_load_in_process, args=(str(root), barrier, results))
        for _ in range(2)
    ]
    for run in runs:
        run.start()
    marks = {results.get(timeout=120) for _ in runs}
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0] and len(marks) == 1
    assert len(stores(root)) == 1 and not list((root / "features").rglob(".*.part"))
    assert json.loads((stores(root)[0] / "meta.json").read_text())["fingerprint"] in marks
