"""The verdict finds planted faults and nothing else: the metric's own error rates."""

import random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from profforce.audio.mel import MelSpectrogram
from profforce.audio.vocoder import build_vocoder
from profforce.config import MelConfig, VocoderKind
from profforce.data.recipes.synthetic import Sound, sounds_of, synthetic_texts
from profforce.errors import UserError
from profforce.evaluation.edits import edits_between
from profforce.evaluation.letters import (
    LAST_PAUSE_FRAMES,
    Templates,
    letters_of,
    mel_of,
    rendered,
    tokens_of,
)
from profforce.evaluation.verdict import HELD, Verdict, judge

MEL = MelConfig()
TEXTS = synthetic_texts(24)


def verdict_of(sounds: list[Sound], text: str, templates: Templates) -> Verdict:
    return judge(mel_of(sounds, MEL), tokens_of(text, MEL), templates, MEL)


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0])
def test_what_is_said_rightly_is_without_fault(variation: float, templates: Templates) -> None:
    for text in TEXTS:
        verdict = judge(rendered(text, MEL, variation), tokens_of(text, MEL), templates, MEL)
        assert verdict.edits.total == 0 and not verdict.failed, text


def test_vocoded_truth_is_without_fault(templates: Templates) -> None:
    vocoder, analyse = build_vocoder(VocoderKind.griffin_lim, MEL), MelSpectrogram(MEL)
    for text in TEXTS[:3]:
        mel = analyse(vocoder(rendered(text, MEL, 1.0)))
        assert judge(mel, tokens_of(text, MEL), templates, MEL).edits.total == 0


@given(
    st.sampled_from(TEXTS),
    st.sampled_from(["deleted", "repeated", "swapped"]),
    st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_planted_faults_are_counted_to_the_letter(
    templates: Templates, text: str, kind: str, seed: int
) -> None:
    sounds, rng = sounds_of(text, 1.0), random.Random(seed)
    start = rng.randrange(0, len(sounds) - 4)
    stop = start + rng.randint(1, 4)
    middle = {
        "deleted": [],
        "repeated": sounds[start:stop] * 2,
        "swapped": sounds[start:stop][::-1],
    }[kind]
    said = [*sounds[:start], *middle, *sounds[stop:]]
    wanted, planted = ([t.symbol for t in letters_of(s, MEL)] for s in (sounds, said))
    assume(len(planted) == sum(s.symbol.isalpha() for s in said))  # no letter met itself
    verdict = verdict_of(said, text, templates)
    truth = edits_between(wanted, planted)
    assert verdict.edits == truth
    assert verdict.failed == (truth.total > 1 or truth.missing_tail > 0 or truth.extra_tail > 1)


@given(st.sampled_from(TEXTS), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_a_cut_end_is_an_early_stop(templates: Templates, text: str, letters: int) -> None:
    sounds = sounds_of(text)[:-2]  # without the last pause
    verdict = verdict_of(sounds[:-letters], text, templates)
    assert verdict.early and verdict.failed and not verdict.late
    short = verdict_of(sounds, text, templates)
    assert not short.failed, "the pause alone may be left out"


def test_to_hum_on_or_not_to_be_stopped_is_a_late_stop(templates: Templates) -> None:
    text = TEXTS[0]
    sounds, tokens = sounds_of(text), tokens_of(text, MEL)
    for extra, late in ((LAST_PAUSE_FRAMES, False), (int(HELD * LAST_PAUSE_FRAMES), True)):
        verdict = verdict_of([*sounds, Sound(" ", extra)], text, templates)
        assert verdict.late == verdict.failed == late and verdict.edits.total == 0
    endless = judge(mel_of(sounds, MEL), tokens, templates, MEL, stopped=False)
    assert endless.late and endless.failed


def test_a_letter_or_pause_without_end_is_said_again(templates: Templates) -> None:
    text = TEXTS[0]
    sounds = sounds_of(text)
    pause = next(i for i, sound in enumerate(sounds) if sound.symbol == " ")
    stuck = [*sounds[:3], Sound(sounds[2].symbol, 60), *sounds[3:]]
    verdict = verdict_of(stuck, text, templates)
    assert verdict.edits.repeated == verdict.edits.inserted > 1 and verdict.failed
    silent = [*sounds[:pause], Sound(" ", 80), *sounds[pause:]]
    assert verdict_of(silent, text, templates).edits.inserted > 1


def test_another_mel_definition_is_judged_by_its_own_templates() -> None:
    from profforce.evaluation.letters import letter_templates

    mel = MelConfig(sample_rate=16000, hop_length=200, n_fft=800, win_length=800)
    templates = letter_templates(mel)
    for text in TEXTS[:4]:
        assert judge(rendered(text, mel, 0.5), tokens_of(text, mel), templates, mel).failed is False


def test_a_diverged_mel_is_refused(templates: Templates) -> None:
    mel = torch.full((20, 80), float("nan"))
    with pytest.raises(UserError, match="not finite"):
        judge(mel, tokens_of(TEXTS[0], MEL), templates, MEL)
