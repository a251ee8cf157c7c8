"""A tiny model trained on a small synthetic corpus, by the commands that a person would give."""

from pathlib import Path

from profforce.app import main


def made_corpus(root: Path | str, num_utterances: int = 24) -> list[str]:
    """Prepare a corpus in ``root``; the words that train on it."""
    words = [f"data.root={root}", f"data.num_utterances={num_utterances}"]
    words += ["data.valid_fraction=0.3"]
    assert main(["data", "prepare", "synthetic", *words]) == 0
    return ["data=synthetic", *words]


def trained(root: Path, *words: str, num_utterances: int = 24) -> Path:
    """The run folder of a training of some steps, on a corpus beside it; ``words`` come last."""
    given = ["model=tiny", *made_corpus(root / "corpus", num_utterances)]
    given += ["trainer.steps=4", "trainer.warmup_steps=2", "trainer.batch_size=4", *words]
    assert main(["train", *given, f"hydra.run.dir={root / 'run'}"]) == 0
    return root / "run"
