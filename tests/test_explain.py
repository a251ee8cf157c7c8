"""The nearest name that would have worked."""

import shlex

import pytest

from profforce.bridge import compose
from profforce.config import EvaluateConfig, TrainConfig
from profforce.errors import UserError
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


def test_a_list_without_brackets_is_shown_how_to_write() -> None:
    with pytest.raises(UserError, match=r"got a single value.*write 'judges=\[VALUE\]'"):
        compose(EvaluateConfig, "evaluate", ["judges=dnsmos"])


@pytest.mark.parametrize("folder", ["Müller", "a(b)"], ids=["accent", "brackets"])
def test_a_path_that_hydra_cannot_read_is_shown_how_to_write(folder: str) -> None:
    with pytest.raises(UserError) as err:
        compose(TrainConfig, "train", ["data=custom", f"data.root=/x/{folder}"])
    advice = str(err.value).rpartition("quote the value twice: ")[2]
    (word,) = shlex.split(advice)
    assert compose(TrainConfig, "train", ["data=custom", word]).data.root == f"/x/{folder}"
