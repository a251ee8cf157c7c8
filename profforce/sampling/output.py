"""What a spoken utterance becomes on disk: rate, loudness and format of its audio, and its mel.

Files appear whole or not at all, and the same input gives the same bytes.
"""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from profforce.audio.files import resample
from profforce.audio.loudness import to_loudness
from profforce.config import AudioSubtype, SampleConfig
from profforce.disk import told_by_system
from profforce.errors import UserError

MAKE_ROOM = "make room there, or choose another --out folder"
LOUDNESS_TOLERANCE_LU = 0.1
"""A target missed by more is worth a warning."""


def mastered(audio: Tensor, rate: int, config: SampleConfig) -> tuple[Tensor, int, list[str]]:
    """``audio [N]`` at the rate and loudness that ``config`` asks for; its rate; warnings."""
    if config.sample_rate is not None:
        audio, rate = resample(audio, rate, config.sample_rate), config.sample_rate
    if config.loudness_lufs is None:
        return audio, rate, []
    audio, reached = to_loudness(audio, rate, config.loudness_lufs)
    if math.isnan(reached):
        return audio, rate, ["too quiet to have a loudness; left as it is"]
    if abs(reached - config.loudness_lufs) > LOUDNESS_TOLERANCE_LU:
        return audio, rate, [f"peaks allow {reached:.1f} LUFS only"]
    return audio, rate, []


def write_output(path: Path, audio: Tensor, rate: int, subtype: AudioSubtype) -> None:
    """Write ``audio [N]`` in the format of the suffix; integer samples are clipped at full scale.

    Raises:
        UserError: if it cannot be written, or holds values that are not finite.
    """
    if not bool(torch.isfinite(audio).all()):
        raise UserError(
            "the model made values that are not finite (nan or inf)",
            where=path,
            remedy="try another checkpoint",
        )
    if subtype is not AudioSubtype.FLOAT:
        audio = audio.clamp(-1.0, 1.0)
    samples = audio.detach().to("cpu", torch.float32).numpy()
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        kind = path.suffix.lstrip(".").upper()
        with told_by_system(aside):
            soundfile.write(aside, samples, rate, format=kind, subtype=str(subtype))
        if subtype is AudioSubtype.FLOAT and kind == "WAV":
            _forget_the_time(aside)
        aside.replace(path)
    except (soundfile.SoundFileError, OSError) as err:
        got = getattr(err, "strerror", None) or str(err).strip() or None
        raise UserError("cannot write audio", where=path, got=got, remedy=MAKE_ROOM) from err
    finally:
        aside.unlink(missing_ok=True)


def _forget_the_time(path: Path) -> None:
    """Zero the time that libsndfile writes beside the peak of float samples."""
    with path.open("r+b") as file:
        at = file.read(256).find(b"PEAK")
        if at >= 0:
            file.seek(at + 12)  # name, size, version
            file.write(bytes(4))


def write_array(path: Path, array: NDArray[np.float32]) -> None:
    """Write ``array`` as ``.npy``."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with told_by_system(aside), aside.open("wb") as file:
            np.save(file, array)
        aside.replace(path)
    except OSError as err:
        raise UserError(
            "cannot write the mel", where=path, got=err.strerror, remedy=MAKE_ROOM
        ) from err
    finally:
        aside.unlink(missing_ok=True)


def require_writable(out: Path) -> None:
    """Make the folder ``out``; a :class:`UserError` if nothing can be written into it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=out)
        os.close(handle)
        Path(name).unlink()
    except OSError as err:
        raise UserError(
            "cannot write here",
            where=out,
            got=err.strerror or str(err),
            remedy="choose another --out folder",
        ) from err
