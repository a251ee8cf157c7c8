"""Reading, writing and trimming of speech files. Audio is mono float32 ``[N]``, full scale 1.0."""

import io
import math
import os
from pathlib import Path

import soundfile
import torch
import torch.nn.functional as F
import torchaudio
from torch import Tensor

from profforce.audio.rates import RATES, can_convert
from profforce.audio.sinc import interpolate
from profforce.audio.tars import member_bytes
from profforce.disk import told_by_system
from profforce.errors import UserError

TRIM_FRAME_S = 0.04
TRIM_HOP_S = 0.01
FILTER_WIDTH, ROLLOFF = 32, 0.96
"""Of the resampling filter: zero crossings at each side, and where the band ends."""
MOST_FILTERS = 2**22
"""Values of the filters of all phases between two samples at which both rates meet; where there
are more, they are not all made at once."""


def read_audio(path: str | Path, sample_rate: int) -> Tensor:
    """Audio of ``path`` as ``[N]`` at ``sample_rate`` Hz, channels averaged.

    ``X.tar/NAME`` is a member of a tar. Raises :class:`UserError` naming the file when it is
    missing, unreadable, empty, of a rate that is not converted or holds values that are not finite.
    """
    path = Path(path)
    if not path.is_file():
        raw = member_bytes(path)
        if raw is None:
            raise UserError("no such audio file", where=path)
        return decode_audio(raw, path, sample_rate)
    if path.stat().st_size == 0:
        raise _empty(path, "0 bytes")
    return decode_audio(path, path, sample_rate)


def decode_audio(source: Path | bytes, path: Path, sample_rate: int) -> Tensor:
    """As :func:`read_audio` for a file or the ``bytes`` of one; ``path`` is for messages."""
    if source == b"":
        raise _empty(path, "0 bytes")
    try:
        samples, file_rate = soundfile.read(
            io.BytesIO(source) if isinstance(source, bytes) else source,
            dtype="float32",
            always_2d=True,
        )
    except (soundfile.SoundFileError, OSError, RuntimeError) as error:
        raise UserError(
            f"cannot read audio ({_first_line(error)})",
            where=path,
            expected="a wav, flac, ogg or mp3 file",
        ) from error
    if samples.size == 0:
        raise _empty(path, "0 samples")
    if not can_convert(file_rate, sample_rate):
        raise UserError(
            "audio of this sample rate is not converted",
            where=path,
            got=f"{file_rate} Hz",
            expected=RATES,
            remedy="see whether the header is damaged, or resample the file",
        )
    audio = torch.from_numpy(samples).mean(dim=1)
    if not bool(torch.isfinite(audio).all()):
        raise UserError("audio holds values that are not finite (nan or inf)", where=path)
    return resample(audio, file_rate, sample_rate)


def _empty(path: Path, got: str) -> UserError:
    remedy = "remove its line from the manifest or record it again"
    return UserError("audio file is empty", where=path, got=got, remedy=remedy)


def resample(audio: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """``audio [..., N]`` brought to ``to_hz`` by windowed-sinc interpolation."""
    if from_hz == to_hz:
        return audio
    if from_hz * to_hz // math.gcd(from_hz, to_hz) ** 2 > MOST_FILTERS:
        return interpolate(audio, from_hz, to_hz, filter_width=FILTER_WIDTH, rolloff=ROLLOFF)
    resampled: Tensor = torchaudio.functional.resample(
        audio, from_hz, to_hz, lowpass_filter_width=FILTER_WIDTH, rolloff=ROLLOFF
    )
    return resampled


def write_audio(path: str | Path, audio: Tensor, sample_rate: int) -> None:
    """Write ``audio [N]`` as a 16-bit mono wav; values beyond full scale are clipped.

    The file appears whole or not at all. Missing folders are made.
    """
    path = Path(path)
    if audio.ndim != 1:
        raise ValueError(f"audio must have shape [N], got {list(audio.shape)}")
    samples = audio.detach().to("cpu", torch.float32).clamp(-1.0, 1.0).numpy()
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with told_by_system(aside):
            soundfile.write(aside, samples, sample_rate, format="WAV", subtype="PCM_16")
        aside.replace(path)
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"cannot write audio ({_first_line(error)})", where=path) from error
    finally:
        aside.unlink(missing_ok=True)


def trim_silence(audio: Tensor, sample_rate: int, trim_db: float) -> Tensor:
    """Cut the ends of ``audio [N]`` that stay ``trim_db`` dB below the loudest 40 ms."""
    if audio.numel() == 0:
        return audio
    frame, hop = (max(1, round(s * sample_rate)) for s in (TRIM_FRAME_S, TRIM_HOP_S))
    padded = F.pad(audio.double().square(), (frame // 2, frame - frame // 2))
    power = F.avg_pool1d(padded[None, None], frame, hop)[0, 0]  # centred on each hop
    heard = torch.nonzero(power >= power.max() * 10 ** (-trim_db / 10))
    return audio[int(heard[0]) * hop : (int(heard[-1]) + 1) * hop]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
