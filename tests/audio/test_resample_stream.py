"""Audio resampled in parts is the audio resampled at once."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.audio.files import resample
from profforce.audio.resample_stream import ResampleStream

RATES = st.sampled_from([(22050, 24000), (22050, 8000), (8000, 6000), (8000, 8000), (300, 1000)])


@settings(deadline=None, max_examples=40)
@given(rates=RATES, length=st.integers(0, 4000), sizes=st.lists(st.integers(0, 900), max_size=6))
def test_parts_are_the_whole(rates: tuple[int, int], length: int, sizes: list[int]) -> None:
    audio = torch.randn(length, generator=torch.Generator().manual_seed(length))
    stream, made, at = ResampleStream(*rates), [], 0
    for size in sizes:
        made.append(stream.push(audio[at : at + size], False))
        at += size
    made.append(stream.push(audio[at:], True))
    whole = resample(audio, *rates) if length else audio
    torch.testing.assert_close(torch.cat(made), whole, rtol=1e-5, atol=1e-5)


def test_what_is_kept_does_not_grow() -> None:
    stream = ResampleStream(22050, 24000)
    total = sum(len(stream.push(torch.randn(1000), False)) for _ in range(50))
    assert total > 24000 / 22050 * 49_000
    assert stream._kept is not None and len(stream._kept) < 1500
