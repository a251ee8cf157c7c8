"""What is wrong with what was heard: figures to defects, without a file at hand."""

from collections.abc import Iterator
from dataclasses import dataclass

from profforce.config import DataConfig, MelConfig
from profforce.data.check import audio_kinds as kinds
from profforce.data.check import text_kinds
from profforce.data.check.kinds import Kind
from profforce.data.check.sound import Sound

QUIET_PEAK = 10 ** (-30 / 20)
MAX_MEAN = 0.02
MAX_CLIPPED = 20
"""Triples of samples in a row at full scale; a few of them are not heard."""
MAX_EDGE_S = 1.0
MAX_PAUSE_S = 2.0
MAX_SYMBOLS_A_SECOND = 30.0
MIN_SYMBOLS_A_SECOND = 2.0
SLOW_FROM_S = 2.0
"""A single letter or word may take long for its length; nothing longer does."""
FLOATS = ("FLOAT", "DOUBLE")
COARSE = ("PCM_S8", "PCM_U8", "ULAW", "ALAW", "DWVW_12")
WIDE = ("PCM_24", "PCM_32")
LOSSY = ("OGG", "MPEG", "MP3")


@dataclass(frozen=True)
class Limits:
    """The settings that sounds are held against."""

    data: DataConfig
    mel: MelConfig

    def frames(self, sound: Sound) -> int:
        """Mel frames that training makes of it."""
        samples = sound.heard_samples * self.mel.sample_rate / sound.sample_rate
        return int(samples / self.mel.hop_length)

    def seconds(self, sound: Sound) -> float:
        """Seconds that training counts."""
        return self.frames(sound) * self.mel.hop_length / self.mel.sample_rate

    def skips(self, sound: Sound) -> bool:
        """Whether training leaves it out for its length."""
        return any(kind in (kinds.AUDIO_SHORT, kinds.AUDIO_LONG) for kind, _ in self.length(sound))

    def length(self, sound: Sound) -> Iterator[tuple[Kind, str]]:
        """Too short or too long."""
        seconds = self.seconds(sound)
        if seconds < self.data.min_seconds or seconds == 0:
            yield kinds.AUDIO_SHORT, f"{seconds:.2f} s"
        if seconds > self.data.max_seconds:
            yield kinds.AUDIO_LONG, f"{seconds:.1f} s"


def sound_defects(sound: Sound, limits: Limits) -> Iterator[tuple[Kind, str]]:
    """Everything that can be said about a sound without its text."""
    yield from _level(sound)
    yield from limits.length(sound)
    yield from _silences(sound)
    yield from _format(sound, limits.mel)


def rate_defects(sound: Sound, num_symbols: int, limits: Limits) -> Iterator[tuple[Kind, str]]:
    """Whether ``num_symbols`` of text fit to a sound that training does not skip."""
    frames, seconds = limits.frames(sound), limits.seconds(sound)
    rate = num_symbols / seconds
    got = f"{num_symbols} symbols in {seconds:.1f} s"
    if frames < num_symbols:
        yield text_kinds.TEXT_TOO_LONG, f"{num_symbols} symbols, {frames} frames"
    elif rate > MAX_SYMBOLS_A_SECOND:
        yield text_kinds.TEXT_FAST, got
    elif rate < MIN_SYMBOLS_A_SECOND and seconds > SLOW_FROM_S:
        yield text_kinds.TEXT_SLOW, got


def _level(sound: Sound) -> Iterator[tuple[Kind, str]]:
    if sound.mono_peak < QUIET_PEAK:
        yield kinds.AUDIO_QUIET, f"a peak of {sound.mono_peak:.1g}"
    if sound.num_clipped >= MAX_CLIPPED:
        yield kinds.AUDIO_CLIPPED, f"{sound.num_clipped} samples"
    if sound.peak > 1 and sound.subtype in FLOATS:
        yield kinds.AUDIO_BEYOND, f"a peak of {sound.peak:.3g}"
    if abs(sound.mean) > MAX_MEAN:
        yield kinds.AUDIO_DC, f"a mean of {sound.mean:.3f}"


def _silences(sound: Sound) -> Iterator[tuple[Kind, str]]:
    for kind, seconds, most in (
        (kinds.AUDIO_LEADING, sound.leading_s, MAX_EDGE_S),
        (kinds.AUDIO_TRAILING, sound.trailing_s, MAX_EDGE_S),
        (kinds.AUDIO_PAUSE, sound.pause_s, MAX_PAUSE_S),
    ):
        if seconds > most:
            yield kind, f"{seconds:.1f} s"


def _format(sound: Sound, mel: MelConfig) -> Iterator[tuple[Kind, str]]:
    if sound.sample_rate < 2 * mel.fmax_hz:
        yield kinds.AUDIO_LOW_RATE, f"{sound.sample_rate} Hz for mel.fmax_hz={mel.fmax_hz:g}"
    elif sound.sample_rate != mel.sample_rate:
        yield kinds.AUDIO_RATE, f"{sound.sample_rate} Hz, not {mel.sample_rate}"
    if sound.channels > 1:
        yield kinds.AUDIO_STEREO, f"{sound.channels} channels"
    for kind, subtypes in (
        (kinds.AUDIO_COARSE, COARSE),
        (kinds.AUDIO_WIDE, WIDE),
        (kinds.AUDIO_FLOAT, FLOATS),
    ):
        if sound.subtype in subtypes:
            yield kind, sound.subtype
    if sound.file_format in LOSSY:
        yield kinds.AUDIO_LOSSY, sound.file_format
    if sound.is_unbounded:
        yield kinds.AUDIO_UNBOUNDED, "0xffffffff or alike"
