"""The mel definition."""

from dataclasses import dataclass, fields

from profforce.config.checks import in_range

HIGHEST_RATE = 384_000
"""Samples a second: what recorders go to."""


@dataclass
class MelConfig:
    """The mel definition, HiFi-GAN's universal one by default. Two mels agree only if all agree."""

    sample_rate: int = 22050
    n_fft: int = 1024
    hop_length: int = 256
    win_length: int = 1024
    num_mels: int = 80
    fmin_hz: float = 0.0
    fmax_hz: float = 8000.0
    log_floor: float = 1e-5
    """mel = log(max(amplitude, log_floor)), natural logarithm."""

    def __post_init__(self) -> None:
        in_range("mel", self, ("sample_rate",), 1, HIGHEST_RATE)
        in_range("mel", self, ("n_fft", "hop_length", "win_length", "num_mels"), 1)
        in_range("mel", self, ("log_floor",), 0, above=True)
        in_range("mel", self, ("fmin_hz", "fmax_hz"), 0)
        if self.fmax_hz <= self.fmin_hz or self.fmax_hz > self.sample_rate / 2:
            raise ValueError(
                f"mel.fmax_hz must lie in (mel.fmin_hz, mel.sample_rate / 2] = "
                f"({self.fmin_hz:g}, {self.sample_rate / 2:g}], got {self.fmax_hz:g}"
            )
        if self.win_length > self.n_fft:
            raise ValueError(
                f"mel.win_length must be <= mel.n_fft = {self.n_fft}, got {self.win_length}"
            )
        if self.hop_length > self.win_length:
            raise ValueError(
                f"mel.hop_length must be <= mel.win_length = {self.win_length}, "
                f"got {self.hop_length}"
            )

    def differences(self, other: "MelConfig") -> str:
        """Human-readable list of the fields that differ (``name self != other``), or ''."""
        rows = [
            f"{f.name} {getattr(self, f.name)} != {getattr(other, f.name)}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]
        return ", ".join(rows)
