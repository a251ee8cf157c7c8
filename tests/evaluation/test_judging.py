"""Which sounds go before a judge, and where its figures end up."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from profforce.audio.files import write_audio
from profforce.audio.griffin_lim import GriffinLim
from profforce.audio.mel import MelSpectrogram
from profforce.config import MelConfig
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.figures import FIGURES, SCORES, Row, mean_over
from profforce.evaluation.judging import OfSentences, Take, judged
from profforce.evaluation.listening import Hearing
from profforce.evaluation.material import Material, Recording
from profforce.sampling.request import Request

MEL = MelConfig(
    sample_rate=8000, n_fft=512, hop_length=128, win_length=512, fmax_hz=4000.0, num_mels=20
)
TEXT = "Red sky over night."
LOUD = 0.5 * torch.sin(torch.arange(8000) * 0.2)


@dataclass
class Said:
    audio: Tensor


@dataclass
class Loudness:
    """Scores the loudest sample."""

    takes: list[Take] = field(default_factory=list)

    def __call__(self, take: Take) -> Row:
        self.takes.append(take)
        return {f"distillmos{take.suffix}": float(take.audio.abs().max())}


class Ear:
    """Hears the text if it is loud, else its first two words."""

    def __call__(self, audio: Tensor) -> str:
        return "red sky over night" if float(audio.abs().max()) > 0.4 else "red sky"


@pytest.fixture
def material(tmp_path: Path) -> Material:
    write_audio(tmp_path / "a.wav", LOUD, 8000)
    recording = Recording(MelSpectrogram(MEL)(LOUD), tmp_path / "a.wav", None)
    voices: dict[str | None, list[Recording]] = {"ann": [recording]}
    requests = [Request(TEXT, "1", speaker="ann")]
    return Material("m", requests, [recording], MEL, voices=voices)


def run(audio: Tensor, forced: list[Tensor] | None = None) -> Evaluation:
    said: Any = Said(audio)
    return Evaluation("r", "c", [{"text": TEXT}], [said], MEL, 1, GriffinLim(MEL), forced)


def test_every_sound_goes_before_the_judge_at_its_rate(material: Material) -> None:
    judge = Loudness()
    silent = [torch.full((62, 20), -11.5)]
    [found] = judged([run(0.1 * LOUD, silent)], material, [judge])
    assert [take.suffix for take in judge.takes] == ["_vocoded", "_recorded", "", "_forced"]
    assert all(abs(len(take.audio) - 16_000) <= 256 for take in judge.takes)
    assert judge.takes[1].recording is (material.recordings or [])[0]
    assert all(take.speaker == "ann" and len(take.voice) == 1 for take in judge.takes)
    row = found.rows[0]
    assert row["distillmos"] == pytest.approx(0.05, rel=0.05)
    assert row["distillmos_recorded"] == pytest.approx(0.5, rel=0.05)
    assert row["distillmos_forced"] < 0.01 < 0.1 < row["distillmos_vocoded"]


def test_recordings_are_judged_once_for_all_runs(material: Material) -> None:
    judge, told = Loudness(), list[tuple[str, int, int]]()
    both = [run(LOUD), replace(run(0.1 * LOUD), run="s")]
    first, second = judged(both, material, [judge], lambda *at: told.append(at))
    assert [take.suffix for take in judge.takes] == ["_vocoded", "_recorded", "", ""]
    assert first.rows[0]["distillmos_vocoded"] == second.rows[0]["distillmos_vocoded"]
    assert first.rows[0]["distillmos"] > second.rows[0]["distillmos"]
    assert told == [("judging recordings", 1, 1), ("judging r", 1, 1), ("judging s", 1, 1)]


def test_texts_alone_have_one_sound(material: Material) -> None:
    judge = Loudness()
    alone = Material("m", material.requests)
    [found] = judged([run(LOUD)], alone, [judge])
    assert set(found.rows[0]) == {"text", "distillmos"} and judge.takes[0].recording is None


@pytest.mark.parametrize(
    "audio", [torch.zeros(0), torch.full((400,), torch.nan)], ids=["none", "not finite"]
)
def test_what_is_no_sound_has_no_figure(material: Material, audio: Tensor) -> None:
    [found] = judged([run(audio)], material, [Loudness()])
    assert "distillmos" not in found.rows[0] and "distillmos_recorded" in found.rows[0]


def test_words_are_judged_like_sounds(material: Material) -> None:
    [found] = judged([run(0.1 * LOUD, [torch.full((62, 20), -11.5)])], material, [Hearing(Ear())])
    row = found.rows[0]
    assert row["heard"] == "red sky" and row["word_errors"] == row["word_errors_forced"] == 0.5
    assert row["heard_recorded"] == "red sky over night" and row["word_errors_recorded"] == 0.0
    assert "word_errors_vocoded" in row and mean_over(found.rows, "word_errors").mean == 0.5
    [alone] = judged([run(LOUD)], Material("m", material.requests), [Hearing(Ear())])
    expected = {"text", "heard", "words", "characters", "word_errors", "character_errors"}
    assert set(alone.rows[0]) == expected


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("Stop, stop!", False),
        ("No one is in.", True),
        ("今日は天気がいいので散歩に行きたいのです", True),
    ],
    ids=["two words", "four words", "no spaces"],
)
def test_a_word_or_two_are_not_judged(text: str, judged: bool) -> None:
    assert bool(OfSentences(Loudness())(Take(text, LOUD))) == judged


def test_each_score_has_a_line_beside_its_yardsticks() -> None:
    keys = [figure.key for figure in FIGURES if figure.key.startswith("dnsmos_p808")]
    assert keys == [f"dnsmos_p808{end}" for end in ("", "_forced", "_vocoded", "_recorded")]
    better = {figure.better for figure in FIGURES if figure.key.startswith(tuple(SCORES))}
    assert better == {"higher"}
