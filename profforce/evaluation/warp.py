"""What a reading skipped or made up, by its alignment to a recording: for corpora without letters.

Where speech is missing, dynamic time warping lays many frames of the recording on few of the
reading, and the other way round where it says more. Pauses may be of any length.

T mel frames, M mel channels, P path steps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from profforce.config import MelConfig
from profforce.models.metrics import warping_path

WINDOW_S = 0.2
"""The shortest slip that is seen."""
STEEP = 4.0
"""So many times faster or slower than the other side means that it is not the same speech."""
QUIET_NEPERS = 2.5
"""Below the loudest frame: a pause."""


@dataclass(frozen=True)
class Slips:
    """Speech of one side that has no counterpart."""

    skipped_s: float
    """Of the recording."""
    made_up_s: float
    """Of the reading: said again, or babbled."""

    @property
    def any(self) -> bool:
        """Something was skipped or made up."""
        return self.skipped_s > 0 or self.made_up_s > 0


def slips_between(reading: Tensor, recording: Tensor, config: MelConfig) -> Slips:
    """Compare ``reading [T1, M]`` with ``recording [T2, M]``, natural-log amplitude, finite."""
    path = warping_path(reading, recording)
    second = config.sample_rate / config.hop_length
    window = max(round(WINDOW_S * second), 2)
    return Slips(
        skipped_s=_unmatched(path[:, ::-1], _loud(recording), window) / second,
        made_up_s=_unmatched(path, _loud(reading), window) / second,
    )


def _loud(mel: Tensor) -> npt.NDArray[np.bool_]:
    level = mel.float().exp().mean(-1).log()
    loud: npt.NDArray[np.bool_] = (level > level.max() - QUIET_NEPERS).cpu().numpy()
    return loud


def _unmatched(path: npt.NDArray[np.int64], loud: npt.NDArray[np.bool_], window: int) -> int:
    """Loud frames of the first side that the second passes too fast, ``window`` of them or more."""
    earliest = np.zeros(len(loud), dtype=np.int64)
    latest = np.zeros(len(loud), dtype=np.int64)
    earliest[path[::-1, 0]] = path[::-1, 1]  # of several counterparts the last written stays
    latest[path[:, 0]] = path[:, 1]
    voiced = np.flatnonzero(loud)
    unmatched = np.zeros(len(voiced), dtype=bool)
    for start in range(len(voiced) - window + 1):
        stop = start + window
        passed = latest[voiced[stop - 1]] - earliest[voiced[start]] + 1
        if passed <= window / STEEP:
            unmatched[start:stop] = True
    return int(unmatched.sum())
