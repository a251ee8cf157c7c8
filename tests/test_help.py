"""What the help of a command gives as examples of its settings."""

import re

import pytest
import typer

from profforce.app import app
from profforce.bridge import compose
from profforce.config import BenchConfig, EvaluateConfig, SampleConfig, TrainConfig

SCHEMAS = {"sample": SampleConfig, "evaluate": EvaluateConfig, "bench": BenchConfig}
USEFUL = {
    "train": r"model=|trainer\.|experiment=",
    "data prepare": r"data\.",
    "data check": r"data\.",
    "data pack": r"data\.",
    "sample": r"seed=|checkpoint=|vocoder=",
    "evaluate": r"num_utterances=|checkpoint=|seed=",
    "export": r"checkpoint=|stop_threshold=",
    "bench": r"suite=|threads=|shapes=",
}


def examples(words: str) -> list[str]:
    """The settings that the help of a command shows."""
    command = typer.main.get_command(app)
    for word in words.split():
        command = command.commands[word]  # type: ignore[attr-defined]
    (told,) = [p.help for p in command.params if p.name == "overrides"]  # type: ignore[attr-defined]
    return re.findall(r"\[b\](.*?)\[/b\]", told.replace(r"\[", "["))


@pytest.mark.parametrize("words", sorted(USEFUL))
def test_its_examples_are_of_use_and_are_taken(words: str) -> None:
    shown = examples(words)
    assert len(shown) >= 2
    assert [word for word in shown if not re.match(USEFUL[words], word)] == []
    name = "sample" if words == "export" else words
    schema = SCHEMAS.get(name, TrainConfig)
    corpus = ["data=custom"] if words.startswith("data") else []
    compose(schema, name if name in SCHEMAS else "train", [*corpus, *shown])
