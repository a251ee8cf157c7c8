"""Speech as it is made: chunks of audio of a text of any length, in constant memory.

Shapes: T mel frames, M mel channels, N samples.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profforce.audio.join import FADE_S, JoinStream
from profforce.audio.resample_stream import ResampleStream
from profforce.audio.vocoder import Vocoder
from profforce.errors import UserError
from profforce.sampling.script import Part, Script
from profforce.sampling.spoken import Pauses
from profforce.sampling.stream_piece import PieceEnd, PieceStream
from profforce.sampling.takes import Taker

FIRST_FRAMES = 8
"""Of the windows up to the first audio."""
GROWTH = 1.5
"""Of the windows from then on, up to ``chunk_s``: while one is made, the one before is heard."""
MAX_NAMED = 10
"""Pieces named in one warning."""


@dataclass(frozen=True)
class Chunk:
    """The next bit of a text's audio; never without any."""

    audio: NDArray[np.float32]
    """``[N]``, full scale 1.0."""
    sample_rate: int
    start_s: float
    """Where it begins."""
    mel: NDArray[np.float32]
    """``[T, M]``, natural-log amplitude: frames that came to be known with it, T >= 0."""
    piece: int
    """Number of the piece that it belongs to, from 0."""
    ended: PieceEnd | None = None
    """What became of the piece, if this is its last chunk."""
    last: bool = False
    """The text is spoken."""
    warnings: list[str] = field(default_factory=list)
    """With the last chunk: what was left out or cut, and what is wrong and cannot be mended."""

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return len(self.audio) / self.sample_rate


class SpeechStream:
    """The chunks of one text: iterate over it, once."""

    def __init__(self, taker: Taker, vocoder: Vocoder, pauses: Pauses, script: Script) -> None:
        """``taker`` has the settings.

        Raises:
            UserError: for a setting that needs the whole audio.
        """
        if taker.config.loudness_lufs is not None:
            raise UserError(
                "a stream cannot be brought to a loudness, which is known at its end only",
                where="loudness_lufs",
                got=f"{taker.config.loudness_lufs:g}",
                remedy="leave it out, or sample the whole",
            )
        self._taker, self._vocoder, self._pauses, self._script = taker, vocoder, pauses, script
        mel, config = taker.mel, taker.config
        self.sample_rate = config.sample_rate or mel.sample_rate
        self._frames_per_s = mel.sample_rate / mel.hop_length
        self._join = JoinStream(fade=round(FADE_S * mel.sample_rate))
        self._resample = ResampleStream(mel.sample_rate, self.sample_rate)
        self._num_samples = self._num_frames = 0
        self._window = float(FIRST_FRAMES)
        self._faulty: list[int] = []

    def __iter__(self) -> Iterator[Chunk]:
        """Speak, piece by piece."""
        for number, part in enumerate(self._script.parts):
            yield from self._piece(number, part)

    def _piece(self, number: int, part: Part) -> Iterator[Chunk]:
        piece, voice = PieceStream(self._taker, part), self._vocoder.stream()
        ends_text = number == len(self._script.parts) - 1
        pause = None if ends_text else round(self._pauses.seconds(part.gap) * self._frames_per_s)
        start_s, waiting = self._num_frames / self._frames_per_s, [self._no_frames()]
        while not piece.done:
            mel = piece.advance(max(1, round(self._window / self._taker.frames_a_step)))
            audio = self._audible(voice.push(mel, piece.done).cpu(), piece.done, pause)
            waiting.append(mel.cpu())
            if not (len(audio) or piece.done):
                continue
            if self._num_samples:
                longest = self._taker.config.chunk_s * self._frames_per_s
                self._window = min(self._window * GROWTH, max(longest, FIRST_FRAMES))
            ended = piece.end(start_s) if piece.done else None
            if ended is not None and ended.faults:
                self._faulty.append(number)
            frames = torch.cat([*waiting, self._no_frames(pause or 0 if piece.done else 0)])
            waiting = []
            yield self._chunk(audio, frames, number, ended, last=piece.done and ends_text)

    def _audible(self, audio: Tensor, ends_piece: bool, pause: int | None) -> Tensor:
        """``audio [n]`` joined to what was before, at the rate that is wanted."""
        gap = None if pause is None else pause * self._taker.mel.hop_length
        joined = self._join.push(audio, last=ends_piece, pause=gap)
        return self._resample.push(joined, ends_piece and pause is None)

    def _no_frames(self, count: int = 0) -> Tensor:
        """``[count, M]`` frames of silence."""
        mel = self._taker.mel
        return torch.full((count, mel.num_mels), math.log(mel.log_floor))

    def _chunk(
        self, audio: Tensor, mel: Tensor, number: int, ended: PieceEnd | None, *, last: bool
    ) -> Chunk:
        start = self._num_samples
        self._num_samples += len(audio)
        self._num_frames += len(mel)
        return Chunk(
            audio=audio.numpy(),
            sample_rate=self.sample_rate,
            start_s=start / self.sample_rate,
            mel=mel.numpy(),
            piece=number,
            ended=ended,
            last=last,
            warnings=[*self._script.warnings, *self._not_mended()] if last else [],
        )

    def _not_mended(self) -> list[str]:
        config = self._taker.config
        if not self._faulty or not (config.retries or config.attention_window):
            return []
        named = ", ".join(str(number + 1) for number in self._faulty[:MAX_NAMED])
        more = len(self._faulty) - MAX_NAMED
        where = "it has" if len(self._script.parts) == 1 else f"pieces {named} have"
        where = f"pieces {named} and {more} more have" if more > 0 else where
        return [f"{where} faults, not tried again: what is streamed is out"]
