"""The nearest name that would have worked."""

import pytest

from profforce.config import TrainConfig
from profforce.explain import key_of, near_key


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("trainer.lr", ""),
        ("trainer.stps", "trainer.steps"),
        ("steps", "trainer.steps"),
        ("training.steps", "trainer.steps"),
        ("trianer.stps", "trainer.steps"),
        ("modl", "model"),
        ("experimnt", "experiment"),
        ("trainer.foo", ""),
        ("trainer.zzz", ""),
    ],
)
def test_near_key(key: str, near: str) -> None:
    assert near_key(key, TrainConfig) == (f"; did you mean '{near}'?" if near else "")


def test_key_of() -> None:
    words = ["a.b=1=2", "+a.b=1", "~a", "++a=1", "group@package=choice"]
    assert [key_of(word) for word in words] == ["a.b", "a.b", "a", "a", "group"]
