"""What passes for speech."""

from dataclasses import dataclass

from profforce.config.checks import in_range


@dataclass
class FaultConfig:
    """What passes for speech; a piece beyond one of these has failed (docs/sampling.md)."""

    max_skipped_symbols: int = 4
    """Neighbouring symbols that attention may pass over."""
    max_skipped_ratio: float = 1.5
    """Or this multiple of the piece's own usual advance, where one step passes several symbols."""
    max_hurry: float = 2.6
    """Over 0.2 s, this multiple of the piece's own mean pace, where that is more than the next."""
    max_symbols_per_s: float = 48.0
    """Pace over 0.2 s: three times that of fast speech."""
    max_astray_s: float = 0.18
    """Time that attention may spend off its way from the first symbol to the last."""
    max_hold_s: float = 0.8
    """Time on one symbol, or six times as long as the piece's own median."""
    max_tail_s: float = 0.8
    """Time on the last symbols."""
    min_on_way: float = 0.6
    """Mean share of attention that is on that way."""
    max_silence_s: float = 1.0
    """Of a pause within the piece."""
    quiet_deviations: float = 1.5
    """A frame is quiet if it is this many deviations of the training mels below their mean."""

    def __post_init__(self) -> None:
        in_range("faults", self, ("max_skipped_symbols",), 1)
        in_range("faults", self, ("max_skipped_ratio", "max_hurry"), 1, unlimited=True)
        in_range("faults", self, ("max_symbols_per_s",), 0, above=True, unlimited=True)
        seconds = ("max_astray_s", "max_hold_s", "max_tail_s", "max_silence_s")
        in_range("faults", self, seconds, 0, above=True, unlimited=True)
        in_range("faults", self, ("min_on_way",), 0, 1)
        in_range("faults", self, ("quiet_deviations",), -10, 10)
