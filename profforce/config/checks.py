"""The check of a range that all settings share."""

from collections.abc import Sequence


def in_range(
    owner: str,
    obj: object,
    names: Sequence[str],
    low: float | None = None,
    high: float | None = None,
    *,
    above: bool = False,
    below: bool = False,
    unlimited: bool = False,
) -> None:
    """Check that each attribute lies between the limits (open ends with ``above``/``below``).

    Only what is ``unlimited`` may be infinite.
    """
    for name in names:
        value = getattr(obj, name)
        if value is None or isinstance(value, str):  # unset, or an interpolation not yet resolved
            continue
        too_low = low is not None and (value <= low if above else value < low)
        too_high = high is not None and (value >= high if below else value > high)
        endless = value in (float("inf"), float("-inf")) and not unlimited
        if too_low or too_high or endless or value != value:
            left = "" if low is None else f"{'>' if above else '>='} {low:g}"
            right = "" if high is None else f"{'<' if below else '<='} {high:g}"
            allowed = " and ".join(part for part in (left, right, endless and "finite") if part)
            raise ValueError(f"{owner}.{name} must be {allowed}, got {value}")
