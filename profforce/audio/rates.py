"""Sample rates that are converted. Needs no PyTorch, for those who look at headers alone."""

LOWEST_HZ, HIGHEST_HZ = 4000, 768_000
"""Telephones take 8,000 Hz, the fastest converters 768,000. Below, seconds of sound become
gigabytes (22,050 samples for each at 1 Hz); above, headers are damaged."""
RATES = f"{LOWEST_HZ} to {HIGHEST_HZ} Hz"
"""For messages."""


def can_convert(from_hz: int, to_hz: int) -> bool:
    """Whether audio of one rate is brought to the other; with the same there is nothing to do."""
    return from_hz == to_hz or LOWEST_HZ <= from_hz <= HIGHEST_HZ
