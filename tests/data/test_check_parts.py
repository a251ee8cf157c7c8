"""The parts of the check that have laws of their own."""

import errno
import os
import struct
import unicodedata
from array import array
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.audio.files import read_audio, resample, trim_silence
from profforce.config import MelConfig, TextConfig
from profforce.data.check import audio_kinds, texts
from profforce.data.check.findings import Finding, Findings
from profforce.data.check.header import header_defect, wav_header
from profforce.data.check.manifest_kinds import LINE_BLANK, LINE_COLUMNS
from profforce.data.check.sides import is_held_out, is_valid_text
from profforce.data.check.sound import Listener, Refusal, Sound
from profforce.data.check.table import PackedTexts, digest, repeated
from profforce.data.manifest import RowReader, read_manifest
from profforce.errors import UserError
from profforce.text.normalize import normalize_text
from profforce.text.tokenizer import Tokenizer
from tests.data.check_cases import tone


@given(st.lists(st.integers(0, 6), max_size=40))
@settings(deadline=None)
def test_repetitions_are_those_of_a_dictionary(values: list[int]) -> None:
    first: dict[int, int] = {}
    expected = []
    for position, value in enumerate(values):
        if value and value in first:
            expected.append((position, first[value]))
        first.setdefault(value, position)
    assert list(repeated(array("Q", values))) == expected


@given(st.lists(st.text(st.characters(codec="utf-8"))), st.data())
@settings(deadline=None)
def test_packed_texts_are_a_list(values: list[str], data: st.DataObject) -> None:
    packed = PackedTexts()
    for value in values:
        packed.append(value)
    assert list(packed) == values and len(packed) == len(values)
    part = data.draw(st.slices(len(values)))
    assert packed[part] == values[part]
    with pytest.raises(IndexError):
        packed[len(values)]


def test_a_digest_is_of_the_text_and_nothing_equals_nothing() -> None:
    assert digest("") == 0
    assert len({digest(text) for text in ("a", "b", "A", "\ud800", "a ")}) == 5


@given(st.from_regex(texts.PLAIN, fullmatch=True))
@settings(deadline=None)
def test_plain_texts_have_no_defect_by_the_long_way_either(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "PLAIN", texts.re.compile("(?!)"))
        assert list(texts.text_defects(text)) == []


@given(st.text())
@settings(deadline=None)
def test_the_visible_form_has_nothing_invisible_and_is_its_own(text: str) -> None:
    clean = texts.visible(text)
    assert texts.visible(clean) == clean
    codes = {kind.code for kind, _ in texts.text_defects(clean)}
    assert not codes & {"text.control", "text.zero_width", "text.whitespace"}


def test_joiners_that_spell_stay() -> None:
    persian = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    assert texts.visible(persian) == persian and texts.invisible(persian) == []
    assert texts.visible("a\u200cb") == "ab"


@given(st.text())
@settings(deadline=None)
def test_known_and_unknown_symbols_are_those_of_the_tokenizer(text: str) -> None:
    tokenizer = Tokenizer(TextConfig())
    alphabet = frozenset(tokenizer.symbols)
    spoken = tokenizer.normalize(text)
    unknown = tokenizer.unknown_symbols(text)
    assert texts.num_known(spoken, alphabet) == len(spoken) - unknown.total()
    reported = {c for c in unknown if unicodedata.category(c) not in ("Cc", "Cf")}
    assert set(texts.unknown_symbols(spoken, alphabet)) <= reported | {
        c for c in unknown if texts.is_control(c) is False and texts.is_format(c) is False
    }
    try:
        tokenizer.encode(text, drop_unknown=True)
        assert texts.is_speakable(spoken, alphabet)
    except UserError:
        assert not texts.is_speakable(spoken, alphabet)


@given(st.text(), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_a_side_is_that_of_the_normal_form(text: str, fraction: float) -> None:
    assert is_held_out(normalize_text(text), fraction) == is_valid_text(text, fraction)


@pytest.mark.parametrize(
    "name", ["u2", "wavs/u2.wav", "sub\\u2.wav", "v1.2", "u2.flac", "./u2.wav"]
)
def test_an_id_does_not_hang_on_where_the_audio_is(tmp_path: Path, name: str) -> None:
    reader = RowReader(tmp_path / "metadata.csv")
    row = reader("here", f"{name}|text")
    assert row is not None
    for place in reader.find.candidates(name):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")
        (tmp_path / "metadata.csv").write_text(f"{name}|text\n")
        (utterance,) = read_manifest(tmp_path)
        assert utterance.id == row.id
        place.unlink()


def test_places_beyond_the_limit_are_counted_only(tmp_path: Path) -> None:
    findings = Findings(tmp_path / "metadata.csv", keep=3)
    for line in range(1, 11):
        findings.at(line, LINE_BLANK)
        findings.at(11 - line, LINE_COLUMNS, "1")
    assert findings.counts["line.blank"] == 10 and len(findings.places("line.blank")) == 3
    assert findings.places("line.blank")[0] == Finding(f"{tmp_path / 'metadata.csv'}:1")
    assert findings.broken_lines().tolist() == list(range(1, 11))
    assert (findings.count("error"), findings.count("note")) == (10, 10)


# Audio.


@given(
    st.floats(0, 1.5), st.floats(0.05, 1), st.floats(0, 1.5), st.sampled_from([16000, 22050, 44100])
)
@settings(max_examples=20, deadline=None)
def test_silence_is_measured_as_it_is_trimmed(
    tmp_path_factory: pytest.TempPathFactory, before: float, inside: float, after: float, rate: int
) -> None:
    path = tmp_path_factory.mktemp("a") / "a.wav"
    silence = [np.zeros(round(seconds * rate)) for seconds in (before, after)]
    samples = np.concatenate([silence[0], tone(inside, rate=rate), silence[1]])
    soundfile.write(path, samples, rate, subtype="PCM_16")
    heard = Listener(path.parent, 22050, 40.0)("a.wav")
    assert isinstance(heard, Sound)
    audio = torch.from_numpy(soundfile.read(path, dtype="float32")[0])
    trimmed = trim_silence(resample(audio, rate, 22050), 22050, 40.0)
    assert heard.heard_samples / rate == pytest.approx(len(trimmed) / 22050, abs=0.031)
    assert heard.leading_s == pytest.approx(before, abs=0.03)
    assert heard.trailing_s == pytest.approx(after, abs=0.03)


def test_a_long_file_is_heard_in_blocks_as_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (30000, 2))
    samples[9000:21000] = 0
    soundfile.write(tmp_path / "a.wav", samples, 22050)
    whole = Listener(tmp_path, 22050, 40.0)("a.wav")
    monkeypatch.setattr("profforce.data.check.sound.BLOCK_SAMPLES", 5000)
    pieces = Listener(tmp_path, 22050, 40.0)("a.wav")
    assert isinstance(whole, Sound) and isinstance(pieces, Sound)
    assert whole._replace(mean=0) == pieces._replace(mean=0)
    assert whole.mean == pytest.approx(pieces.mean, abs=1e-9)
    assert whole.pause_s == pytest.approx(12000 / 22050, abs=0.05)


@pytest.mark.parametrize("rate", [1, 3999, 4000, 22051, 768_000, 768_001])
def test_the_check_allows_the_rates_that_are_read(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, 0.5 * np.sin(np.arange(2000)), rate)
    heard = Listener(tmp_path, 22050, 40.0)("a.wav")
    try:
        read_audio(path, 22050)
    except UserError as err:
        assert isinstance(heard, Refusal) and heard.kind is audio_kinds.AUDIO_ODD_RATE
        assert header_defect(path, 22050) == (audio_kinds.AUDIO_ODD_RATE, f"{rate} Hz")
        assert f"a.wav: {heard.kind.what}; got {rate} Hz; expected 4000 to" in str(err)
        assert heard.kind.expected in str(err) and heard.kind.remedy in str(err)
        assert rate in (1, 3999, 768_001)
    else:
        assert isinstance(heard, Sound) and header_defect(path, 22050) is None
        assert rate in (4000, 22051, 768_000)


def test_a_rate_needs_no_conversion_to_itself(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(np.arange(2000)), 1000)
    assert len(read_audio(tmp_path / "a.wav", 1000)) == 2000
    assert isinstance(Listener(tmp_path, 1000, 40.0)("a.wav"), Sound)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_header_is_read_in_both_byte_orders_and_behind_other_chunks(
    tmp_path: Path, order: str
) -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return name + struct.pack(f"{order}I", len(body)) + body + b"\0" * (len(body) % 2)

    chunks = chunk(b"LIST", b"odd") + chunk(
        b"fmt ", struct.pack(f"{order}HHIIHH", 1, 1, 8000, 16000, 2, 16)
    )
    body = b"WAVE" + chunks + b"data" + struct.pack(f"{order}I", 100) + bytes(60)
    kind = b"RIFF" if order == "<" else b"RIFX"
    path = tmp_path / "a.wav"
    path.write_bytes(kind + struct.pack(f"{order}I", len(body)) + body)
    header = wav_header(path)
    assert header == (8000, 100, 60) and header.is_cut
    assert wav_header(tmp_path / "none.wav") is None


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    soundfile.write(tmp_path / "a.wav", tone(), 22050)
    (tmp_path / "metadata.csv").write_bytes(b"a|text\n")

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "open", refuse)
    heard = Listener(tmp_path, 22050, 40.0)("a.wav")
    assert heard == Refusal(audio_kinds.AUDIO_UNREADABLE, os.strerror(number))
    with pytest.raises(UserError, match=r"cannot read the manifest .*\[manifest.unreadable\]"):
        read_manifest(tmp_path)


def test_silence_for_the_check_is_the_floor_for_training() -> None:
    from profforce.audio.mel import MelSpectrogram

    mel = MelConfig()
    rng = np.random.default_rng(0)
    for shape in (np.ones(22050), np.sign(tone()), rng.choice([-1.0, 1.0], 22050)):
        audio = torch.from_numpy(shape * audio_kinds.SILENT_PEAK).float()
        assert float(MelSpectrogram(mel)(audio).max()) <= np.log(mel.log_floor) + 1e-3
