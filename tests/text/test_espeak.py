import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from profforce.config import TextConfig, TextFrontEnd
from profforce.errors import UserError
from profforce.text import espeak
from profforce.text.tokenizer import Tokenizer

TEXTS = ["Hello, world! (Again.)", "", "It costs $4.50.", "word " * 300, "one - two"]


def answer(
    monkeypatch: pytest.MonkeyPatch, stdout: str = "", stderr: str = "", code: int = 0
) -> list[Any]:
    """Stand in for the program; returns the list that its calls are added to."""
    calls: list[Any] = []

    def run(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, settings["input"]))
        return subprocess.CompletedProcess(list(command), code, stdout, stderr)

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_one_call_for_many_lines_and_marks_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch, " həlˈoʊ\n\n wˈɜːld\n (fr)bˈaɪ(en)\n")
    assert espeak.phonemize(["Hello, world!", "...", "Bye"], "en-us") == [
        "həlˈoʊ, wˈɜːld!",
        "...",
        "bˈaɪ",
    ]
    assert len(calls) == 1 and "en-us" in calls[0][0]


def test_missing_program_and_unknown_voice_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, stderr="Error: no such voice\nmore", code=1)
    with pytest.raises(UserError, match=r"text\.language=zz: .*no such voice"):
        espeak.phonemize(["a"], "zz")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"espeak-ng is not installed.*graphemes"):
        espeak.phonemize(["a"], "en-us")
    assert espeak.phonemize([], "en-us") == []


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
@pytest.mark.parametrize("language", ["en-us", "de", "fr-fr", "ru"])
def test_real_phonemes_are_in_the_alphabet_and_stay_in_their_lines(language: str) -> None:
    tokenizer = Tokenizer(TextConfig(front_end=TextFrontEnd.espeak, language=language))
    together = tokenizer.normalize_many(TEXTS)
    assert together == [tokenizer.normalize(text) for text in TEXTS]
    assert together[1] == "" and together[0].count("!") == 1
    for text in TEXTS:
        assert not tokenizer.unknown_symbols(text)
    if language == "en-us":
        assert "dˈɑːlɚz ænd fˈɪfti sˈɛnts" in together[2]
