"""Which recordings say how a speaker sounds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from profforce.config import DataConfig, MelConfig
from profforce.data.manifest import Utterance
from profforce.errors import UserError
from profforce.evaluation.material import Material
from profforce.sampling.request import Request


def test_voices_are_those_of_the_speaker_that_is_asked_for(tmp_path: Path) -> None:
    """Long recordings first, the same ones every time; of a corpus without speakers any."""
    said = [("ann", 1.0), ("bob", 2.0), ("ann", 2.0), ("ann", 3.0), ("bob", 2.5), ("ann", 0.5)]
    utterances = [
        Utterance(f"{n}", tmp_path / f"{n}.wav", "ba", "ba", name, "m:1")
        for n, (name, _) in enumerate(said)
    ]
    rate = MelConfig().sample_rate / MelConfig().hop_length
    frames = np.array([round(seconds * rate) for _, seconds in said])
    items = [SimpleNamespace(mel=torch.zeros(1, 80)) for _ in said]
    train = MagicMock(utterances=utterances, num_frames=frames)
    train.__len__.return_value, train.__getitem__.side_effect = len(said), items.__getitem__
    corpus: Any = SimpleNamespace(train=train, speakers=("ann", "bob"), mel=MelConfig())
    requests = [Request("a", "1"), Request("b", "2", speaker="bob")]
    material, data = Material("m", requests), DataConfig(root=str(tmp_path))

    def names(count: int, speaker: str | None = None) -> dict[str | None, list[str]]:
        voices = material.with_voices(corpus, data, count, speaker).voices
        return {name: sorted(clip.path.stem for clip in clips) for name, clips in voices.items()}

    assert names(2) == {None: ["2", "3"], "bob": ["1", "4"]}
    assert names(9) == {None: ["0", "2", "3", "5"], "bob": ["1", "4"]}
    assert names(9, "bob") == {None: ["1", "4"], "bob": ["1", "4"]}
    with pytest.raises(UserError, match="no speaker 'eve'"):
        names(1, "eve")
