"""Rates without a common divisor: the same sound as torchaudio's, in little memory.

Compared in float64, for torchaudio makes its filters in the precision of the audio.
"""

import resource

import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.audio.files import FILTER_WIDTH, ROLLOFF, resample
from profforce.audio.sinc import interpolate

RATES = st.integers(90, 1000)


@settings(deadline=None, max_examples=60)
@given(from_hz=RATES, to_hz=RATES, length=st.integers(1, 700))
def test_it_is_what_torchaudio_gives(from_hz: int, to_hz: int, length: int) -> None:
    random = torch.Generator().manual_seed(length)
    audio = torch.randn(
        2, length, generator=random, dtype=torch.float64
    )  # its filters are float32's
    made = interpolate(audio, from_hz, to_hz, filter_width=FILTER_WIDTH, rolloff=ROLLOFF)
    there = torchaudio.functional.resample(
        audio, from_hz, to_hz, lowpass_filter_width=FILTER_WIDTH, rolloff=ROLLOFF
    )
    if from_hz != to_hz:
        torch.testing.assert_close(made, there, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("from_hz", "to_hz"), [(22050, 191_999), (192_001, 22050)])
def test_a_second_at_odd_rates_takes_no_gigabyte(from_hz: int, to_hz: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = resample(torch.randn(from_hz), from_hz, to_hz)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(made) == to_hz and bool(torch.isfinite(made).all())
    assert grown < 500_000, f"{grown} KiB"
