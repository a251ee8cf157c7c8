"""Pieces joined without a click, and loudness that is what was asked for."""

import math

import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.audio.join import JoinStream, join_audio, join_mels
from profforce.audio.loudness import MAX_PEAK, loudness_lufs, to_loudness

RATE = 22050


def tone(samples: int, hz: float, phase: float) -> Tensor:
    return 0.5 * (torch.arange(samples) * 2 * math.pi * hz / RATE + phase).sin()


def largest_jump(audio: Tensor) -> float:
    return float(audio.diff().abs().max())


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(400, 2000), min_size=2, max_size=5),
    pause=st.integers(0, 300),
    hz=st.floats(150, 2000),
    seed=st.integers(0, 1000),
)
def test_no_jump_at_a_seam_is_larger_than_within_the_pieces(
    sizes: list[int], pause: int, hz: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    phases = torch.rand(len(sizes), generator=generator) * 2 * math.pi
    pieces = [tone(n, hz, float(phase)) for n, phase in zip(sizes, phases, strict=True)]
    joined = join_audio(pieces, [pause] * (len(pieces) - 1), fade=110)
    assert len(joined) == sum(sizes) + pause * (len(pieces) - 1)
    assert largest_jump(joined) <= max(map(largest_jump, pieces)) + 1e-6


def test_without_fades_there_is_a_click_to_hear() -> None:
    pieces = [tone(1000, 200, 1.0), tone(1000, 200, 2.0)]
    within = max(map(largest_jump, pieces))
    assert largest_jump(join_audio(pieces, [100], fade=0)) > 5 * within
    assert largest_jump(join_audio(pieces, [100], fade=110)) <= within


def test_only_the_seams_are_faded() -> None:
    pieces = [torch.ones(1000), torch.ones(600), torch.ones(3)]
    joined = join_audio(pieces, [10, 0], fade=50)
    assert joined[:950].eq(1).all() and joined[1000:1010].eq(0).all()
    assert joined[1010] < 0.01 and joined[999] < 0.01 and joined[1060] == 1
    assert joined[-1] == 1 and len(joined) == 1613
    assert pieces[0].eq(1).all()
    assert torch.equal(join_audio([pieces[0]], [], fade=50), pieces[0])


@pytest.mark.parametrize(("number", "pauses"), [(0, []), (1, [3]), (2, [])])
def test_one_pause_fewer_than_pieces(number: int, pauses: list[int]) -> None:
    with pytest.raises(ValueError, match="one pause fewer"):
        join_audio([torch.ones(4)] * number, pauses, fade=1)


def test_mels_keep_step_with_the_audio() -> None:
    joined = join_mels([torch.ones(3, 2), torch.zeros(4, 2)], [2], silence=-11.5)
    assert joined.shape == (9, 2)
    assert joined[:3].eq(1).all() and joined[3:5].eq(-11.5).all() and joined[5:].eq(0).all()


@settings(max_examples=20, deadline=None)
@given(
    target=st.floats(-40, -14),
    gain=st.floats(0.01, 1.0),
    seconds=st.floats(0.05, 2.0),
    rate=st.sampled_from([8000, 22050, 48000]),
)
def test_audio_is_brought_to_the_loudness(
    target: float, gain: float, seconds: float, rate: int
) -> None:
    noise = torch.randn(int(seconds * rate), generator=torch.Generator().manual_seed(0))
    audio, reached = to_loudness(noise * gain * 0.1, rate, target)
    assert loudness_lufs(audio, rate) == pytest.approx(reached, abs=0.02)
    assert reached == pytest.approx(target, abs=0.02) or audio.abs().max() == pytest.approx(
        MAX_PEAK, abs=1e-4
    )


def test_the_loudness_of_a_known_signal() -> None:
    """BS.1770: a full-scale sine of 997 Hz in one channel has -3.01 LUFS."""
    sine = (torch.arange(48000) * 2 * math.pi * 997 / 48000).sin()
    assert loudness_lufs(sine, 48000) == pytest.approx(-3.01, abs=0.05)
    quiet = sine / 10
    truth = float(torchaudio.functional.loudness(quiet[None], 48000))
    assert loudness_lufs(quiet, 48000) == pytest.approx(truth, abs=0.01)


def test_a_peak_limits_the_gain_and_loud_audio_is_only_lowered() -> None:
    click = torch.zeros(RATE)
    click[::2000] = 0.5
    raised, reached = to_loudness(click, RATE, 0.0)
    assert float(raised.abs().max()) == pytest.approx(MAX_PEAK, abs=1e-5) and reached < -5
    loud = torch.ones(RATE).mul(0.99) * tone(RATE, 500, 0).sign()
    lowered, reached = to_loudness(loud, RATE, -20.0)
    assert reached == pytest.approx(-20, abs=0.05) and lowered.abs().max() < 0.5


@pytest.mark.parametrize("audio", [torch.zeros(RATE), torch.zeros(0), torch.ones(RATE) * 1e-7])
def test_silence_has_no_loudness_and_stays(audio: Tensor) -> None:
    same, reached = to_loudness(audio, RATE, -23.0)
    assert torch.equal(same, audio) and math.isnan(reached)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    fade=st.integers(0, 12),
    sizes=st.lists(st.integers(0, 15), max_size=5),
)
def test_pieces_that_come_in_parts_are_joined_alike(
    lengths: list[int], fade: int, sizes: list[int]
) -> None:
    pieces = [1 + torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in lengths]
    pauses = [3 * n % 7 for n in range(len(pieces) - 1)]
    join, made = JoinStream(fade=fade), []
    for piece, pause in zip(pieces, [*pauses, None], strict=True):
        for size in sizes:
            made.append(join.push(piece[:size], last=False))
            piece = piece[size:]
        made.append(join.push(piece, last=True, pause=pause))
    torch.testing.assert_close(torch.cat(made), join_audio(pieces, pauses, fade=fade))
