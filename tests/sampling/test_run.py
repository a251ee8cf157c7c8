"""Sampling as a person uses it: files, rows, odd texts, errors, the same result every time."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from profforce.audio.loudness import loudness_lufs
from profforce.config import AudioFormat, AudioSubtype, SampleConfig
from profforce.errors import UserError
from profforce.sampling.request import Request
from profforce.sampling.run import sample

FAST = SampleConfig(device="cpu", griffin_lim_iterations=2, pictures=False, retries=0)
TEXTS = ["One two.", "A", "The third text is a longer one, with a comma.", "4", "one two."]


def rows(
    run: Path, texts: Sequence[str | Request], out: Path, **changes: Any
) -> list[dict[str, Any]]:
    made = list(sample(replace(FAST, **changes), run, texts, out))
    return json.loads(json.dumps(made))


def test_every_utterance_has_its_files_and_an_honest_row(run: Path, tmp_path: Path) -> None:
    made = rows(run, TEXTS[:2], tmp_path, pictures=True)
    assert [row["text"] for row in made] == TEXTS[:2]
    for row in made:
        audio, rate = soundfile.read(row["wav"])
        mel = np.load(row["mel"])
        assert rate == 8000
        assert mel.shape == (row["frames"], 20) and mel.dtype == np.float32
        assert len(audio) == row["frames"] * 128
        assert row["seconds"] == pytest.approx(len(audio) / rate, abs=1e-4)
        assert row["stopped_by"] in ("stop", "end_of_speech", "max_frames")
        assert 0 <= row["alignment_coverage"] <= 1
        assert row["real_time_factor"] > 0
        assert Path(row["picture"]).read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 6


def test_stopped_by_tells_the_limit_from_the_stop_head(run: Path, tmp_path: Path) -> None:
    never = rows(run, TEXTS[:1], tmp_path, stop_threshold=0.999)[0]
    assert never["stopped_by"] == "max_frames"
    assert never["seconds"] >= 2.0
    assert "no_stop" in {fault["kind"] for fault in never["faults"]}
    soon = rows(run, TEXTS[:1], tmp_path, stop_threshold=1e-6)[0]
    least = math.ceil(9 * FAST.min_seconds_per_symbol * 8000 / 128)
    assert (soon["stopped_by"], soon["frames"]) == ("stop", least + FAST.tail_frames)
    assert soon["faults"] and "no_stop" not in {fault["kind"] for fault in soon["faults"]}


def test_same_seed_same_bytes_other_seed_other_bytes(run: Path, tmp_path: Path) -> None:
    first, again, other = (
        Path(rows(run, TEXTS[:1], tmp_path / name, seed=seed, stop_threshold=0.999)[0]["wav"])
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_shares_of_the_texts_give_the_files_and_rows_of_all(run: Path, tmp_path: Path) -> None:
    def made(share: slice, out: Path) -> list[dict[str, Any]]:
        found = list(sample(FAST, run, TEXTS, out, share=share))
        return [{**row, "real_time_factor": 0} for row in found]

    whole = made(slice(None), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    parts = [made(slice(k, None, 2), tmp_path) for k in range(2)]
    assert [row for pair in zip(parts[0], [*parts[1], None], strict=True) for row in pair][
        :-1
    ] == whole
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "I",
        "7",
        "x" * 1000,
        "hello world " * 84,
        "Dr. Smith paid $4.50 at 4:30 p.m.!",
        "  spaced  ",
        "crab \U0001f980",
        "a\x00b\x1b[31m",
        "שלום \u202eמה נשמע",
        "http://example.com/a?b=c&d=e",
        "no no no no no no no no",
    ],
    ids=range(12),
)
def test_odd_texts_are_spoken(run: Path, tmp_path: Path, text: str) -> None:
    row = rows(run, [text], tmp_path, stop_threshold=0.2)[0]
    assert row["frames"] >= 1 and Path(row["wav"]).is_file()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "no text to speak"),
        (["fine", "   "], "text 2"),
        ([""], "text 1"),
        (["fine", "ok", "\U0001f980"], "text 3: nothing to say.*\U0001f980"),
    ],
)
def test_what_cannot_be_read_is_one_line_before_anything_is_written(
    run: Path, tmp_path: Path, texts: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said) as err:
        rows(run, texts, tmp_path / "out")
    assert "\n" not in str(err.value)
    assert not (tmp_path / "out").exists()


def test_an_out_that_is_a_file_is_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="cannot write here"):
        rows(run, TEXTS[:1], tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_speakers(run: Path, tmp_path: Path) -> None:
    ann, default, bob = (
        Path(rows(run, TEXTS[:1], tmp_path / str(who), speaker=who, stop_threshold=0.999)[0]["wav"])
        for who in ("ann", None, "bob")
    )
    assert ann.read_bytes() == default.read_bytes() != bob.read_bytes()
    with pytest.raises(UserError, match="no speaker 'anna'; did you mean 'ann'"):
        rows(run, TEXTS[:1], tmp_path, speaker="anna")


def test_a_device_that_is_not_there_is_one_line(run: Path, tmp_path: Path) -> None:
    for name in ("cuda:99", "tpuu"):
        with pytest.raises(UserError, match=f"device is not available; got '{name}"):
            rows(run, TEXTS[:1], tmp_path, device=name)


LONG = (
    "The first sentence is here to be spoken alone, it says. After it, a second sentence comes "
    "that is as long as the first.\n\nThe last of them has a paragraph of its own, and no end"
)


def test_a_long_text_is_one_file_from_pieces_with_pauses(run: Path, tmp_path: Path) -> None:
    (row,) = rows(
        run, [LONG], tmp_path, max_symbols_per_piece=90, stop_threshold=0.2, pictures=True
    )
    audio, rate = soundfile.read(row["wav"])
    mel, pieces = np.load(row["mel"]), row["pieces"]
    assert [piece["text"][:9] for piece in pieces] == ["The first", "After it,", "The last "]
    assert len(audio) == 128 * row["frames"] == 128 * len(mel)
    assert all(Path(piece["picture"]).is_file() for piece in pieces)
    starts = [round(piece["start_s"] * rate) // 128 for piece in pieces]  # in frames
    ends = [start + piece["frames"] for start, piece in zip(starts, pieces, strict=True)]
    assert ends[-1] == row["frames"]
    for end, start, pause_s in ((ends[0], starts[1], 0.3), (ends[1], starts[2], 0.7)):
        assert (start - end) * 128 / rate == pytest.approx(pause_s, abs=128 / rate)
        assert not audio[end * 128 : start * 128].any() and audio[start * 128 :].any()
        assert mel[end:start] == pytest.approx(np.log(1e-5))
    names = {path.name for path in tmp_path.iterdir()}
    stem = "0001-the-first-sentence-is-here-to-be-spoken"
    assert names == {f"{stem}{end}" for end in (".wav", ".npy", ".01.png", ".02.png", ".03.png")}
    assert row["picture"] is None and row["warnings"] == []


def test_pauses_are_settings_and_pieces_are_those_of_each_alone(run: Path, tmp_path: Path) -> None:
    quick = {"max_symbols_per_piece": 90, "stop_threshold": 0.2, "subtype": AudioSubtype.FLOAT}
    (whole,) = rows(run, [LONG], tmp_path, pause_s=0.0, paragraph_pause_s=0.0, **quick)
    alone = rows(run, [piece["text"] for piece in whole["pieces"]], tmp_path / "alone", **quick)
    assert whole["frames"] == sum(row["frames"] for row in alone)
    audio = soundfile.read(whole["wav"])[0]
    parts = [soundfile.read(row["wav"])[0] for row in alone]
    np.testing.assert_array_equal(audio[: len(parts[0]) - 40], parts[0][:-40])  # but for the fade


@pytest.mark.filterwarnings("error")
def test_characters_that_the_font_lacks_are_no_noise(run: Path, tmp_path: Path) -> None:
    (row,) = rows(run, ["crab \U0001f980\x00"], tmp_path, pictures=True, stop_threshold=0.2)
    assert Path(row["picture"]).is_file()


def test_ids_speakers_and_warnings_reach_the_rows(run: Path, tmp_path: Path) -> None:
    asked = [
        Request("One.", "t.jsonl:1", id="NUL", speaker="bob"),
        Request("crab \U0001f980", "t.jsonl:2", id="a-2"),
        Request("One.", "t.jsonl:3", id="a-3", speaker="ann"),
    ]
    first, second, third = rows(run, asked, tmp_path, stop_threshold=0.2)
    assert (first["id"], first["speaker"]) == ("NUL", "bob")
    assert Path(first["wav"]).name.startswith("nul-") and Path(second["wav"]).name == "a-2.wav"
    assert second["warnings"] == ["left out: '\U0001f980' (U+1F980) x1"]
    assert "speaker" not in second
    assert Path(first["wav"]).read_bytes() != Path(third["wav"]).read_bytes()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Request("!", "t.jsonl:2"), r"^t\.jsonl:2: nothing to say"),
        (Request("a", "t.jsonl:2", speaker="eve"), r"^t\.jsonl:2: .*no speaker 'eve'"),
        (Request("a", "t.jsonl:2", id="x"), r"^t\.jsonl:2: .*as in t\.jsonl:1"),
    ],
    ids=["text", "speaker", "id"],
)
def test_a_bad_line_is_named_before_anything_is_written(
    run: Path, tmp_path: Path, bad: Request, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        rows(run, [Request("One.", "t.jsonl:1", id="x"), bad], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_format_rate_and_loudness_of_the_files(run: Path, tmp_path: Path) -> None:
    (row,) = rows(
        run,
        TEXTS[:1],
        tmp_path,
        stop_threshold=0.999,
        format=AudioFormat.flac,
        subtype=AudioSubtype.PCM_24,
        sample_rate=16000,
        loudness_lufs=-30.0,
    )
    audio, rate = soundfile.read(row["wav"], dtype="float32")
    assert row["wav"].endswith(".flac") and rate == row["sample_rate"] == 16000
    assert row["seconds"] == pytest.approx(row["frames"] * 128 / 8000, abs=1e-3)
    assert loudness_lufs(torch.from_numpy(audio), rate) == pytest.approx(-30.0, abs=0.1)
