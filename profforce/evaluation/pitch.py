"""How far the fundamental frequency of a reading is from that of the recording.

T mel frames, M mel channels, N samples.
"""

import math
from dataclasses import dataclass

import librosa
import numpy as np
import numpy.typing as npt
from torch import Tensor

from profforce.config import MelConfig
from profforce.models.metrics import warping_path

LOWEST_HZ, HIGHEST_HZ = 60.0, 500.0
"""Speaking voices, men's and children's."""
SEMITONES = 12.0
"""An octave."""

Pitch = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PitchError:
    """Along the alignment of both mels."""

    semitones: float
    """Root mean square where both are voiced; NaN where they never are."""
    voicing: float
    """Share of the path on which one is voiced and the other is not."""


def pitch_of(audio: Tensor, config: MelConfig) -> Pitch:
    """Fundamental frequency of ``audio [N]`` a mel frame, in Hz; NaN where it has none.

    Probabilistic YIN (Mauch and Dixon 2014), with windows of at least three of the longest periods.
    """
    window = 2 ** math.ceil(math.log2(3 * config.sample_rate / LOWEST_HZ))
    hertz, voiced, _ = librosa.pyin(
        audio.cpu().double().numpy(),
        fmin=LOWEST_HZ,
        fmax=HIGHEST_HZ,
        sr=config.sample_rate,
        frame_length=max(window, 4 * config.hop_length),
        hop_length=config.hop_length,
    )
    pitch: Pitch = np.where(voiced, hertz, np.nan)
    return pitch


def pitch_error(
    reading: tuple[Tensor, Tensor], recording: tuple[Tensor, Tensor], config: MelConfig
) -> PitchError:
    """Compare two pairs of audio ``[N]`` and its mel ``[T, M]``, finite, T >= 1."""
    path = warping_path(reading[1], recording[1])
    pairs = zip((reading, recording), path.T, strict=True)
    own, true = (_at(pitch_of(pair[0], config), frames) for pair, frames in pairs)
    both = np.isfinite(own) & np.isfinite(true)
    apart = SEMITONES * np.log2(own[both] / true[both])
    return PitchError(
        semitones=float(np.sqrt(np.mean(apart**2))) if both.any() else float("nan"),
        voicing=float(np.mean(np.isfinite(own) != np.isfinite(true))),
    )


def _at(pitch: Pitch, frames: npt.NDArray[np.int64]) -> Pitch:
    """A mel has up to a frame more or less than the pitch of its audio."""
    at: Pitch = pitch[frames.clip(0, len(pitch) - 1)]
    return at
