"""Slips of a reading are found by its alignment to the recording alone."""

import math

import pytest
import torch

from profforce.config import MelConfig
from profforce.data.recipes.synthetic import sounds_of, synthetic_texts
from profforce.evaluation.letters import mel_of, rendered
from profforce.evaluation.warp import slips_between

MEL = MelConfig()
TEXTS = [text for text in synthetic_texts(40) if len(text) > 20][:10]
HOP_S = MEL.hop_length / MEL.sample_rate


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_another_way_to_say_it_is_no_slip(text: str) -> None:
    recording = rendered(text, MEL)
    assert not slips_between(rendered(text, MEL, 1.0), recording, MEL).any
    sounds = sounds_of(text)
    pause = next(i for i, sound in enumerate(sounds) if sound.symbol == " ")
    place = 1 + sum(sound.frames for sound in sounds[:pause])
    silence = torch.full((60, MEL.num_mels), math.log(MEL.log_floor))
    paused = torch.cat([recording[:place], silence, recording[place:]])
    assert not slips_between(paused, recording, MEL).any


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_left_out_or_said_again_is_found(text: str) -> None:
    sounds = sounds_of(text, 1.0)
    start, stop = 5, 13
    planted = HOP_S * sum(s.frames for s in sounds[start:stop] if s.symbol.isalpha())
    recording = rendered(text, MEL)
    skipped = slips_between(mel_of(sounds[:start] + sounds[stop:], MEL), recording, MEL)
    assert planted / 2 < skipped.skipped_s < 2 * planted and skipped.made_up_s == 0
    again = slips_between(mel_of(sounds[:stop] + sounds[start:], MEL), recording, MEL)
    assert planted / 2 < again.made_up_s < 2 * planted and again.skipped_s == 0


def test_the_same_has_no_slips_however_short() -> None:
    mel = torch.randn(3, 80)
    assert not slips_between(mel, mel, MEL).any
