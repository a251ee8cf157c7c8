"""The figures of an evaluation: their names, units and which way is better."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profforce.evaluation.statistics import Estimate, Values, difference_of, mean_of

Row = dict[str, Any]
"""One utterance: its figures under their keys, texts beside them; a figure may be missing."""


@dataclass(frozen=True)
class Figure:
    """Something that is measured of every utterance."""

    key: str
    title: str
    shape: str
    """Of the numbers, as :func:`format` takes it."""
    better: str = "lower"
    counted: str | None = None
    """Key of how much each utterance counts in the mean; all the same when None."""


FORCED, VOCODED, RECORDED = "_forced", "_vocoded", "_recorded"
"""Ends of the keys of what a judge hears beside the free run."""
HEARD = {
    "": "",
    FORCED: ", teacher-forced",
    VOCODED: ", vocoded recordings",
    RECORDED: ", recordings",
}
"""And of the titles."""
SCORES = {
    "distillmos": ("DistillMOS", ".2f"),
    "dnsmos_overall": ("DNSMOS overall", ".2f"),
    "dnsmos_signal": ("DNSMOS signal", ".2f"),
    "dnsmos_background": ("DNSMOS background", ".2f"),
    "dnsmos_p808": ("DNSMOS P.808", ".2f"),
    "voice_recording": ("voice like the recording's", ".3f"),
    "voice_training": ("voice like that of training", ".3f"),
}
"""Title and shape of what judges give to any sound; more is better."""

FIGURES = (
    Figure("failed", "failed", ".1%"),
    Figure("stopped", "ended by the stop head", ".1%", "higher"),
    Figure("stop_error_s", "length off by, s", ".2f"),
    Figure("unaligned", "symbols not attended", ".1%"),
    Figure("focus", "focus rate", ".3f", "higher"),
    Figure("mcd_free_db", "MCD free-running, dB", ".2f"),
    Figure("mcd_forced_db", "MCD teacher-forced, dB", ".2f"),
    Figure("mcd_gap_db", "MCD gap, dB", ".2f"),
    Figure("dtw_free", "mel distance free-running", ".3f"),
    Figure("dtw_forced", "mel distance teacher-forced", ".3f"),
    Figure("dtw_gap", "mel distance gap", ".3f"),
    Figure("f0_semitones", "F0 error, semitones", ".2f"),
    Figure("voicing_error", "voicing wrong", ".1%"),
    *(
        Figure(f"{unit}_errors{suffix}", f"{unit}s misheard{what}", ".1%", counted=f"{unit}s")
        for unit in ("word", "character")
        for suffix, what in HEARD.items()
    ),
    *(
        Figure(f"{key}{suffix}", f"{title}{what}", shape, "higher")
        for key, (title, shape) in SCORES.items()
        for suffix, what in HEARD.items()
        if (key, suffix) != ("voice_recording", RECORDED)  # it is its own
    ),
    Figure("real_time_factor", "real-time factor", ".3f"),
)
"""In the order of the tables. MCD and mel distance are those of ``profforce.models.metrics``."""


def measured(rows: Sequence[Row]) -> list[Figure]:
    """The figures that any of ``rows`` has."""
    return [figure for figure in FIGURES if any(row.get(figure.key) is not None for row in rows)]


def mean_over(rows: Sequence[Row], key: str) -> Estimate:
    """Mean of the figure ``key`` over the utterances that have it, with its interval."""
    return mean_of(_values(rows, key), weights=_weights(rows, key))


def difference_over(rows: Sequence[Row], baseline: Sequence[Row], key: str) -> Estimate:
    """Mean of ``rows - baseline``, paired by utterance."""
    weights = _weights(rows, key)
    return difference_of(_values(rows, key), _values(baseline, key), weights=weights)


def number(figure: Figure, value: float | None) -> str:
    """``value`` as people read it; a dash where there is none."""
    return "-" if value is None or not np.isfinite(value) else format(value, f"z{figure.shape}")


def with_interval(figure: Figure, estimate: Estimate, sign: str = "") -> str:
    """``"12.0% [4.0%, 20.0%]"``; ``sign="+"`` writes that of positive numbers too, none of -0."""
    if not np.isfinite(estimate.mean):
        return "-"
    mean, low, high = (
        format(value, f"{sign}z{figure.shape}")
        for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean} [{low}, {high}]"


def _weights(rows: Sequence[Row], key: str) -> Values | None:
    counted = next((figure.counted for figure in FIGURES if figure.key == key), None)
    return None if counted is None else _values(rows, counted)


def _values(rows: Sequence[Row], key: str) -> Values:
    found = [row.get(key) for row in rows]
    return np.array([[np.nan if value is None else float(value) for value in found]])
