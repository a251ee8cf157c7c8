import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_variation_is_kept_apart_and_documented(tmp_path: Path) -> None:
    plain = DataConfig(kind=DataKind.synthetic, root=str(tmp_path), num_utterances=6)
    varied = replace(plain, variation=1.0, valid_fraction=0.3)
    synthetic.make(plain)
    prepare(varied, TextConfig(), MelConfig())
    rows = [json.loads(line) for line in (tmp_path / synthetic.DURATIONS).read_text().splitlines()]
    corpus = load_corpus(varied, TextConfig(), MelConfig())
    frames = {
        side[k].id: len(side[k].mel)
        for side in (corpus.train, corpus.valid)
        for k in range(len(side))
    }
    assert {row["id"]: sum(row["frames"]) for row in rows} == frames
    assert all(row["id"].startswith("synthetic-v1-") for row in rows)
    assert len(list(tmp_path.glob("wavs/*.wav"))) == 12


@given(st.sampled_from(synthetic.synthetic_texts(20)), st.floats(0.05, 1))
@settings(max_examples=30, deadline=None)
def test_variation_changes_how_a_text_is_said_and_repeats(text: str, variation: float) -> None:
    sounds = synthetic.sounds_of(text, variation)
    assert sounds == synthetic.sounds_of(text, variation)
    assert [sound.symbol for sound in sounds] == synthetic.symbols_of(text)
    for sound in sounds:
        assert sound.frames >= synthetic.SHORTEST_FRAMES[sound.symbol.isalpha()]
        assert 0.98 < sound.pitch < 1.02 and 0.7 < sound.gain < 1.42
    assert len({sound.pitch for sound in sounds}) > 3
    audio = synthetic.synthesize(text, variation)
    assert np.array_equal(audio, synthetic.synthesize(text, variation))
    other = synthetic.sounds_of(text, variation, reading=1)
    assert [sound.symbol for sound in other] == [sound.symbol for sound in sounds]
    assert [sound.pitch for sound in other] != [sound.pitch for sound in sounds]
    assert len(audio) == sum(synthetic.durations(text, variation)) * synthetic.MEL.hop_length


def test_without_variation_every_symbol_is_always_alike() -> None:
    for text in synthetic.synthetic_texts(8):
        sounds = synthetic.sounds_of(text)
        assert {(s.pitch, s.gain) for s in sounds} == {(1.0, 1.0)}
        assert len({(s.symbol, s.frames) for s in sounds}) == len({s.symbol for s in sounds})
        assert np.array_equal(synthetic.synthesize(text), synthetic.synthesize(text, 0.0))
