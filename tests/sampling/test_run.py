"""Sampling as a person uses it: files, rows, odd texts, errors, the same result every time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profforce.config import SampleConfig
from profforce.errors import UserError
from profforce.sampling.run import sample, slug
from profforce.sampling.synthesizer import Synthesizer, _speaker_number

FAST = SampleConfig(device="cpu", griffin_lim_iterations=2, pictures=False)
TEXTS = ["One two.", "A", "The third text is a longer one, with a comma.", "4", "one two."]


def rows(run: Path, texts: list[str], out: Path, **changes: Any) -> list[dict[str, Any]]:
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
        assert row["stopped_by"] in ("stop", "max_frames")
        assert 0 <= row["alignment_coverage"] <= 1
        assert row["real_time_factor"] > 0
        assert Path(row["picture"]).read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 6


def test_stopped_by_tells_the_limit_from_the_stop_head(run: Path, tmp_path: Path) -> None:
    never = rows(run, TEXTS[:1], tmp_path, stop_threshold=0.999)[0]
    assert never["stopped_by"] == "max_frames"
    assert never["seconds"] >= 2.0
    soon = rows(run, TEXTS[:1], tmp_path, stop_threshold=1e-6)[0]
    assert (soon["stopped_by"], soon["frames"]) == ("stop", 1)


def test_an_utterance_too_short_to_be_speech_is_warned_of(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows(run, TEXTS[:1], tmp_path, stop_threshold=0.999)
    assert not caplog.messages
    rows(run, TEXTS[:1], tmp_path, stop_threshold=1e-6)
    assert caplog.messages and "text 1: 0.02 s for" in caplog.messages[0]


def test_names_of_files_keep_their_letters() -> None:
    assert slug("Zwölf Äpfel for $5.") == "zwolf-apfel-for-5"
    assert slug("Привет!") == "privet"
    assert slug("!?") == "text"


def test_a_speaker_of_a_model_without_speakers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this model has no speakers; got speaker=bob"):
        _speaker_number("bob", ())


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(range(len(TEXTS))), batch_size=st.integers(1, 5))
def test_neither_order_nor_batch_changes_an_utterance(
    run: Path, order: list[int], batch_size: int
) -> None:
    alone = Synthesizer.from_run(run, replace(FAST, batch_size=1, griffin_lim_iterations=1))
    together = Synthesizer.from_run(
        run, replace(FAST, batch_size=batch_size, griffin_lim_iterations=1)
    )
    truth = list(alone.synthesize(TEXTS))
    mixed = list(together.synthesize([TEXTS[i] for i in order]))
    for i, spoken in zip(order, mixed, strict=True):
        assert spoken.text == truth[i].text
        assert spoken.mel.shape == truth[i].mel.shape
        torch.testing.assert_close(spoken.mel, truth[i].mel, rtol=1e-4, atol=1e-4)


def test_same_seed_same_bytes_other_seed_other_bytes(run: Path, tmp_path: Path) -> None:
    first, again, other = (
        Path(rows(run, TEXTS[:1], tmp_path / name, seed=seed, stop_threshold=0.999)[0]["wav"])
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()


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
    ],
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
        (["fine", "ok", "crab \U0001f980"], "text 3.*\U0001f980"),
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


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_slugs_are_safe_file_names(text: str) -> None:
    name = slug(text)
    assert 0 < len(name) <= 40
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not name.startswith("-") and not name.endswith("-")
