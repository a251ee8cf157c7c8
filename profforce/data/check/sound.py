"""Listening to one audio file in bounded memory. Needs no PyTorch, so that workers start fast."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import soundfile

from profforce.audio.rates import can_convert
from profforce.data.check import audio_kinds as kinds
from profforce.data.check.header import header_defect, wav_header
from profforce.data.check.kinds import Kind

HOP_S = 0.01
WINDOW_HOPS = 4
"""Hops of the window whose power counts, as in :func:`profforce.audio.files.trim_silence`."""
SILENCE_DB = 40.0
"""Where ``data.trim_db`` is null: what stays this far below the loudest part is silence."""
FULL_SCALE = 0.999
CLIP_RUN = 3
"""Samples in a row at full scale that a wave does not have by itself."""
BLOCK_SAMPLES = 2**20

Block = npt.NDArray[np.float32]


class Sound(NamedTuple):
    """What was heard. Levels relative to full scale."""

    sample_rate: int
    channels: int
    file_format: str
    subtype: str
    num_samples: int
    peak: float
    mono_peak: float
    """Of the average of the channels, which is what is used."""
    mean: float
    num_clipped: int
    """Triples of samples in a row at full scale, over all channels."""
    leading_s: float
    trailing_s: float
    pause_s: float
    """The longest silence inside."""
    heard_samples: int
    """What is left when silence is trimmed."""
    digest: int
    """64 bits of the samples."""
    is_unbounded: bool
    """Whether a wav's header leaves the length open."""


@dataclass(frozen=True)
class Refusal:
    """Why a file cannot be used."""

    kind: Kind
    got: str


@dataclass(frozen=True)
class Listener:
    """Audio file of ``folder`` to what is heard in it; a picklable callable for processes."""

    folder: Path
    sample_rate: int
    """Of the mel, in Hz."""
    trim_db: float | None

    def __call__(self, name: str) -> Sound | Refusal:
        """Listen to the file ``name``; never raises for anything that a file may hold."""
        path = self.folder / name
        try:
            size = path.stat().st_size
            with path.open("rb"):
                pass
        except OSError as error:
            return Refusal(kinds.AUDIO_UNREADABLE, str(error.strerror))
        if size == 0:
            return Refusal(kinds.AUDIO_EMPTY, "0 bytes")
        if found := header_defect(path, self.sample_rate):
            return Refusal(*found)
        try:
            return self._listen(path)
        except (soundfile.SoundFileError, OSError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Refusal(kinds.AUDIO_CORRUPT, reason.rsplit(": ", 1)[-1].rstrip("."))

    def _listen(self, path: Path) -> Sound | Refusal:
        with soundfile.SoundFile(path) as file:
            if not can_convert(file.samplerate, self.sample_rate):
                return Refusal(kinds.AUDIO_ODD_RATE, f"{file.samplerate} Hz")
            meter = _Meter(file.samplerate, file.channels)
            for block in _blocks(file, meter.hop):
                if not np.isfinite(block).all():
                    return Refusal(kinds.AUDIO_NOT_FINITE, "nan or inf")
                meter.add(block)
            if meter.num_samples == 0:
                return Refusal(kinds.AUDIO_NO_SAMPLES, "0 samples")
            header = wav_header(path)
            is_unbounded = header is not None and header.is_unbounded
            return meter.sound(file.format, file.subtype, self.trim_db, is_unbounded)


def _blocks(file: Any, hop: int) -> Iterator[Block]:
    """float32 [samples, channels] of a whole number of hops, the last being shorter."""
    length = hop * max(1, BLOCK_SAMPLES // (hop * file.channels))
    while len(block := file.read(length, dtype="float32", always_2d=True)):
        yield block


class _Meter:
    """Gathers levels block by block."""

    def __init__(self, sample_rate: int, channels: int) -> None:
        self.sample_rate, self.channels = sample_rate, channels
        self.hop = max(1, round(HOP_S * sample_rate))
        self.num_samples = 0
        self._peak, self._mono_peak, self._sum, self._clipped = 0.0, 0.0, 0.0, 0
        self._power: list[npt.NDArray[np.float64]] = []
        self._hash = hashlib.blake2b(f"{sample_rate} {channels}".encode(), digest_size=8)

    def add(self, block: Block) -> None:
        """``block [samples, channels]``, finite."""
        self._hash.update(np.ascontiguousarray(block).tobytes())
        level = np.abs(block)
        self._peak = max(self._peak, float(level.max()))
        full = level >= FULL_SCALE
        self._clipped += int((full[2:] & full[1:-1] & full[:-2]).sum())
        mono = block.mean(axis=1, dtype=np.float64)
        self._mono_peak = max(self._mono_peak, float(np.abs(mono).max()))
        self._sum += float(mono.sum())
        self.num_samples += len(mono)
        padded = np.pad(np.square(mono), (0, -len(mono) % self.hop))
        self._power.append(padded.reshape(-1, self.hop).sum(axis=1))

    def sound(
        self, file_format: str, subtype: str, trim_db: float | None, is_unbounded: bool
    ) -> Sound | Refusal:
        """All of it at the end, at least one sample."""
        if self._mono_peak < kinds.SILENT_PEAK:
            return Refusal(kinds.AUDIO_SILENT, f"a peak of {self._mono_peak:.1g}")
        heard = _heard(np.concatenate(self._power), SILENCE_DB if trim_db is None else trim_db)
        first, last = heard[0] * self.hop, min(self.num_samples, (heard[-1] + 1) * self.hop)
        return Sound(
            sample_rate=self.sample_rate,
            channels=self.channels,
            file_format=file_format,
            subtype=subtype,
            num_samples=self.num_samples,
            peak=self._peak,
            mono_peak=self._mono_peak,
            mean=self._sum / self.num_samples,
            num_clipped=self._clipped,
            leading_s=first / self.sample_rate,
            trailing_s=(self.num_samples - last) / self.sample_rate,
            pause_s=float(np.diff(heard).max(initial=1) - 1) * HOP_S,
            heard_samples=self.num_samples if trim_db is None else int(last - first),
            digest=int.from_bytes(self._hash.digest(), "little") or 1,
            is_unbounded=is_unbounded,
        )


def _heard(power: npt.NDArray[np.float64], trim_db: float) -> npt.NDArray[np.int64]:
    """int64, ascending, at least one: hops within ``trim_db`` dB of the loudest window."""
    window = np.convolve(power, np.ones(WINDOW_HOPS))[1 : len(power) + 1]
    return np.flatnonzero(window >= window.max() * 10 ** (-trim_db / 10))
