"""What a library user gets: one spoken text as numpy arrays, and its files.

Shapes: T mel frames, M mel channels, U decoder steps, S symbols, N samples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from profforce.config import AudioFormat, AudioSubtype, SampleConfig
from profforce.errors import UserError
from profforce.sampling.faults import Fault
from profforce.sampling.output import mastered, write_array, write_output
from profforce.sampling.spoken import Spoken
from profforce.sampling.stopping import StoppedBy


@dataclass(frozen=True)
class Speech:
    """One spoken text."""

    text: str
    audio: NDArray[np.float32]
    """``[N]``, full scale 1.0."""
    sample_rate: int
    mel: NDArray[np.float32]
    """``[T, M]``, natural-log amplitude; the pauses between pieces hold the mel of silence."""
    alignments: list[NDArray[np.float32]]
    """``[U, S]`` of each piece: attention of the clearest guided head."""
    symbols: list[list[str]]
    """What the model read in each piece."""
    stopped_by: StoppedBy
    """``stop``: the stop head ended every piece; else the worst of what ended one."""
    faults: list[Fault]
    """What is wrong with the speech; times are those of the text. Empty for good speech."""
    warnings: list[str]
    """What was left out of the text, or could not be done."""
    retries: int
    """Attempts made beside the first ones."""
    seconds_spent: float
    """Computing time."""
    subtype: AudioSubtype = AudioSubtype.PCM_16
    """Samples of the files that :meth:`save` writes."""

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return len(self.audio) / self.sample_rate

    @property
    def alignment(self) -> NDArray[np.float32]:
        """``[U, S]`` of the only piece; of several, theirs along the diagonal."""
        blocks = torch.block_diag(*(torch.from_numpy(a) for a in self.alignments))
        whole: NDArray[np.float32] = blocks.numpy()
        return whole

    def save(self, path: str | Path, *, mel: str | Path | None = None) -> Path:
        """Write the audio as ``.wav``, ``.flac`` or headerless ``.raw``, and the mel as ``.npy``.

        The bytes are those of ``profforce sample``. Missing folders are made; a file appears whole
        or not at all.

        Raises:
            UserError: for another suffix, or if a file cannot be written.
        """
        path = Path(path)
        if path.suffix.lstrip(".") not in list(AudioFormat):
            expected = ", ".join(f".{kind}" for kind in AudioFormat)
            raise UserError("unknown audio format", where=path, expected=expected)
        for file in [path] if mel is None else [path, Path(mel)]:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise UserError("cannot write here", where=file, got=err.strerror) from err
        write_output(path, torch.from_numpy(self.audio), self.sample_rate, self.subtype)
        if mel is not None:
            write_array(Path(mel), self.mel)
        return path

    def _repr_html_(self) -> Any:
        """A player, in a notebook."""
        from base64 import b64encode
        from io import BytesIO

        import soundfile

        file = BytesIO()
        soundfile.write(file, self.audio, self.sample_rate, format="WAV", subtype="PCM_16")
        data = b64encode(file.getvalue()).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio>'


def speech_of(spoken: Spoken, config: SampleConfig, *, sample_rate: int, frame_s: float) -> Speech:
    """``spoken`` at the rate and loudness of ``config``; ``sample_rate`` is what it has."""
    audio, rate, remarks = mastered(spoken.audio, sample_rate, config)
    return Speech(
        text=spoken.text,
        audio=audio.numpy(),
        sample_rate=rate,
        mel=spoken.mel.numpy(),
        alignments=[part.alignment.numpy() for part in spoken.parts],
        symbols=[part.symbols for part in spoken.parts],
        stopped_by=spoken.stopped_by,
        faults=[
            fault.later(start * frame_s)
            for part, start in zip(spoken.parts, spoken.starts, strict=True)
            for fault in part.faults
        ],
        warnings=[*spoken.warnings, *remarks],
        retries=spoken.retries,
        seconds_spent=spoken.seconds_spent,
        subtype=config.subtype,
    )
