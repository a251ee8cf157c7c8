import json
from pathlib import Path

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.corpus import load_corpus
from profforce.data.prepare import prepare
from profforce.data.recipes import synthetic


def test_durations_add_up_to_the_mel_and_follow_the_symbols(tmp_path: Path) -> None:
    data = DataConfig(
        kind=DataKind.synthetic, root=str(tmp_path), num_utterances=16, valid_fraction=0.3
    )
    report = prepare(data, TextConfig(), MelConfig())
    assert report.num_utterances == 16 and not report.unknown_symbols
    lines = (tmp_path / synthetic.DURATIONS).read_text().splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    corpus = load_corpus(data, TextConfig(), MelConfig())
    for side in (corpus.train, corpus.valid):
        for k in range(len(side)):
            item, row = side[k], rows[side[k].id]
            assert [corpus.tokenizer.symbols[s] for s in item.symbols] == row["symbols"]
            assert sum(row["frames"]) == len(item.mel)


def test_each_letter_sounds_of_its_own() -> None:
    partials = [
        tuple(low + gap * (place * stride % 26) for low, gap, stride in synthetic.PARTIALS_HZ)
        for place in range(26)
    ]
    assert len(set(partials)) == 26
    assert all(hz < MelConfig().fmax_hz for row in partials for hz in row)
    assert len({synthetic._frames(letter) for letter in "abcdef"}) > 3


def test_the_first_texts_do_not_depend_on_their_number() -> None:
    texts = synthetic.synthetic_texts(50)
    assert texts[:20] == synthetic.synthetic_texts(20) and len(set(texts)) == 50


def test_making_again_changes_nothing(tmp_path: Path) -> None:
    data = DataConfig(kind=DataKind.synthetic, root=str(tmp_path), num_utterances=4)
    synthetic.make(data)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    next(tmp_path.glob("wavs/*.wav")).unlink()
    synthetic.make(data)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
