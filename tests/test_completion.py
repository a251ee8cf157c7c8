"""Completion of overrides, as bash (which splits at "=") and as zsh and fish ask for it."""

import pytest

from profforce.completion import at_equals, complete, rejoin


def test_bash_words_are_joined_again() -> None:
    words = ["model", "=", "linear", "trainer.lr", "=", "1", "seed", "="]
    assert rejoin(words) == ["model=linear", "trainer.lr=1", "seed="]
    assert rejoin([]) == []


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ([], "model=li", ["model=linear"]),
        (["model", "="], "li", ["linear"]),
        (["seed=1"], "trainer.ste", ["trainer.steps="]),
        (["model=tiny"], "method=t", ["method=teacher_forcing", "method=through_time"]),
        ([], "nothing.like.it", []),
    ],
)
def test_completions(words: list[str], incomplete: str, found: list[str]) -> None:
    assert sorted(complete("train", words, incomplete)) == found


def test_own_schemas_and_hydra_are_not_offered() -> None:
    offered = complete("train", [], "")
    assert "model=" in offered and "trainer." in offered
    assert not [word for word in offered if "schema" in word or word.startswith("hydra")]
    assert "vocoder=" in complete("sample", [], "vo")


def test_the_cursor_after_bash_s_own_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "profforce\ntrain\nmodel\n=")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert at_equals()
    monkeypatch.setenv("COMP_CWORD", "2")
    assert not at_equals()


def test_what_breaks_inside_hydra_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profforce.completion._query", lambda *_: 1 / 0)
    assert complete("train", [], "model=") == []
