import json
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.corpus import Corpus, is_valid_text, load_corpus
from profforce.data.prepare import prepare
from profforce.errors import UserError
from tests.data.conftest import MakeCorpus

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEXTS = [f"sentence {word}." for word in NUMBERS]


def load(root: Path, **settings: object) -> Corpus:
    data = DataConfig(root=str(root), **{"valid_fraction": 0.4, **settings})  # type: ignore[arg-type]
    return load_corpus(data, TextConfig(), MelConfig())


def test_items_hold_symbols_and_mels(make_corpus: MakeCorpus) -> None:
    corpus = load(make_corpus(TEXTS))
    for side in (corpus.train, corpus.valid):
        for position in range(len(side)):
            item = side[position]
            assert item.index == position and item.mel.dtype == torch.float32
            assert item.symbols.tolist() == corpus.tokenizer.encode(item.text)
            assert len(item.mel) == side.num_frames[position]
            assert len(item.symbols) == side.num_symbols[position]
    assert len(corpus.train) + len(corpus.valid) == len(TEXTS)
    assert corpus.speakers == () and corpus.mel == MelConfig()


def test_statistics_are_those_of_all_frames(make_corpus: MakeCorpus) -> None:
    train = load(make_corpus(TEXTS)).train
    frames = torch.cat([train[k].mel for k in range(len(train))]).double()
    mean, std = train.mel_statistics()
    assert mean.dtype == std.dtype == torch.float32 and mean.shape == std.shape == (80,)
    torch.testing.assert_close(mean, frames.mean(0).float())
    expected = frames.std(0, correction=0).clamp_min(1e-3).float()
    torch.testing.assert_close(std, expected, rtol=1e-3, atol=1e-4)


@given(st.text(min_size=1), st.floats(0.01, 0.98))
@settings(max_examples=50, deadline=None)
def test_a_larger_fraction_keeps_what_was_held_out(text: str, fraction: float) -> None:
    assert not is_valid_text(text, fraction) or is_valid_text(text, fraction + 0.01)


def test_the_share_held_out_is_the_fraction() -> None:
    held = sum(is_valid_text(f"sentence number {k}", 0.1) for k in range(2000))
    assert 150 < held < 250


def test_equal_texts_stay_on_one_side_and_more_data_moves_none(make_corpus: MakeCorpus) -> None:
    few = load(make_corpus(TEXTS))
    more = load(make_corpus([*TEXTS, *(text.upper() for text in TEXTS), "Another one."]))

    def texts(corpus: Corpus) -> tuple[set[str], set[str]]:
        sides = (corpus.train, corpus.valid)
        train, valid = ({u.spoken.lower() for u in side.utterances} for side in sides)
        return train, valid

    assert not set.intersection(*texts(more))
    assert texts(few)[0] <= texts(more)[0] and texts(few)[1] <= texts(more)[1]


def test_too_short_and_too_long_are_skipped_and_said(
    make_corpus: MakeCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_corpus(TEXTS, seconds=[0.1, 1.5, *[0.4] * 7])
    with caplog.at_level(logging.WARNING):
        corpus = load(root, max_seconds=1.0)
    assert corpus.report.skipped == {
        "shorter than data.min_seconds=0.2": 1,
        "longer than data.max_seconds=1": 1,
    }
    assert len(corpus.train) + len(corpus.valid) == 7
    assert caplog.text.count("skipped 1 utterances") == 2


def test_symbols_outside_the_alphabet_are_counted_with_their_place(
    make_corpus: MakeCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_corpus([*TEXTS, "caf\u00e9", "\u00e9t\u00e9 ~"])
    data = DataConfig(root=str(root), valid_fraction=0.4)
    with caplog.at_level(logging.WARNING):
        corpus = load_corpus(data, TextConfig(normalize=False), MelConfig())
    found = {row.symbol: (row.count, row.where) for row in corpus.report.unknown_symbols}
    assert found == {
        "\u00e9": (3, f"{root / 'metadata.csv'}:10"),
        "~": (1, f"{root / 'metadata.csv'}:11"),
    }
    assert caplog.text.count("symbols outside the alphabet") == 1 and "U+00E9" in caplog.text


def test_a_text_without_anything_to_say_names_its_line(make_corpus: MakeCorpus) -> None:
    with pytest.raises(UserError, match=r"metadata.csv:10: .*nothing to say"):
        load(make_corpus([*TEXTS, "..."]))


def test_both_sides_need_an_utterance(make_corpus: MakeCorpus) -> None:
    with pytest.raises(UserError, match=r"no utterance is left for .*data\.valid_fraction"):
        load(make_corpus(["Only one."]))


def test_num_utterances_limits(make_corpus: MakeCorpus) -> None:
    corpus = load(make_corpus(TEXTS), num_utterances=6)
    assert len(corpus.train) + len(corpus.valid) == 6


def test_speakers_are_numbered_by_name(make_corpus: MakeCorpus) -> None:
    root = make_corpus(TEXTS)
    (root / "metadata.csv").unlink()
    rows = [
        {"audio": f"wavs/u{k}.wav", "text": text, "speaker": "zoe" if k % 2 else "ann"}
        for k, text in enumerate(TEXTS)
    ]
    manifest = root / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = load(root)
    assert corpus.speakers == ("ann", "zoe")
    for side in (corpus.train, corpus.valid):
        for k, utterance in enumerate(side.utterances):
            assert corpus.speakers[side[k].speaker] == utterance.speaker
    del rows[3]["speaker"]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"manifest.jsonl:4: this utterance has no speaker"):
        load(root)


def test_the_cache_may_lie_elsewhere(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS)
    load(root, cache=str(tmp_path / "elsewhere"))
    assert list((tmp_path / "elsewhere").glob("mel-*/shard-*.npy"))
    assert not (root / "features").exists()


def test_a_dataset_survives_pickling(make_corpus: MakeCorpus) -> None:
    train = load(make_corpus(TEXTS)).train
    copy = pickle.loads(pickle.dumps(train))
    assert torch.equal(copy[0].mel, train[0].mel) and np.array_equal(
        copy.num_frames, train.num_frames
    )


def test_a_corpus_that_is_not_there_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run: profforce data prepare demo"):
        load(tmp_path, kind=DataKind.demo)
    with pytest.raises(UserError, match=r"no corpus folder given; set data\.root"):
        load_corpus(DataConfig(), TextConfig(), MelConfig())


def test_prepare_checks_a_custom_corpus(make_corpus: MakeCorpus) -> None:
    data = DataConfig(root=str(make_corpus(TEXTS)), valid_fraction=0.4)
    report = prepare(data, TextConfig(), MelConfig())
    assert report.kind is DataKind.custom and report.num_utterances == len(TEXTS)
    assert report.minutes == pytest.approx(len(TEXTS) * 0.3 / 60, rel=0.1)
