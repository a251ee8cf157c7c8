"""Free-run pieces until they are spoken well: stop, judge, try again, keep the best take.

Shapes: B batch, S symbols, T mel frames, M mel channels, R reduction factor, U decoder steps,
G guided heads.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from profforce.config import MelConfig, SampleConfig
from profforce.models import native
from profforce.models.free_run import FreeRun
from profforce.models.mirror import Mirror, resolve_precision
from profforce.models.tts import TTSModel
from profforce.nn.attention import AttentionWindow
from profforce.nn.noise import PrenetNoise
from profforce.sampling.faults import Fault, FaultKind, Judge, Take
from profforce.sampling.script import Part
from profforce.sampling.steady import SteadyMirror
from profforce.sampling.stopping import (
    Limits,
    StoppedBy,
    limits_of,
    speech_end,
    spoken_step,
    stop_frame,
)

DEAF = 2.0
"""A stop threshold that no probability exceeds."""
MAX_SOUND_AFTER_S = 0.5
"""A last sound may go on for so long after attention has come to the end of the text."""


@dataclass(frozen=True)
class Taken:
    """One attempt at a piece and what became of it."""

    mel: Tensor
    """``[T, M]``, natural-log amplitude; finite frames only, silence in place of others."""
    alignments: Tensor
    """``[G, U, S]``, those of the guided heads."""
    stop_probability: Tensor
    """``[T]``"""
    stopped_by: StoppedBy
    faults: list[Fault]
    held: bool = False
    """Attention was held to its way."""
    retries: int = 0
    """Attempts made beside the first one."""

    def better_than(self, other: "Taken") -> bool:
        """Fewer faults; frames that are not finite weigh more than any number of others."""
        return self._badness() < other._badness()

    def _badness(self) -> tuple[bool, int]:
        broken = any(fault.kind is FaultKind.not_finite for fault in self.faults)
        return broken, len(self.faults)


class Taker:
    """Speaks pieces with one model, as often as it takes within the settings' limits.

    What becomes of a piece depends on the piece, the model and the settings alone: each is judged
    by itself, and the noise of a retry is that of seed, text and number of the attempt.
    """

    def __init__(
        self, model: TTSModel, symbols: Sequence[str], mel: MelConfig, config: SampleConfig
    ) -> None:
        """``symbols`` of the model's alphabet, for messages."""
        on_cpu = model.mel_mean.device.type == "cpu"
        by_modules = on_cpu and native.obstacle(model) is not None
        self.model, self.symbols, self.config, self.mel = model, symbols, config, mel
        self.mirror = SteadyMirror(model) if by_modules else Mirror(model)
        self.held_mirror = SteadyMirror(model) if on_cpu else Mirror(model)
        self.precision = resolve_precision(config.precision, model)
        self.frames_per_s = mel.sample_rate / mel.hop_length
        self.frames_a_step = model.config.reduction_factor
        self.judge = Judge(
            config.faults,
            model.mel_mean,
            model.mel_std,
            frame_s=1 / self.frames_per_s,
            frames=self.frames_a_step,
        )

    def __call__(self, parts: Sequence[Part]) -> list[Taken]:
        """The best take of each of ``parts``, in order."""
        best = self._takes(parts, 0, None)
        for number, window in self._retries():
            failed = [i for i, taken in enumerate(best) if taken.faults]
            if not failed:
                break
            again = self._takes([parts[i] for i in failed], number, window)
            for i, taken in zip(failed, again, strict=True):
                kept = taken if taken.better_than(best[i]) else best[i]
                best[i] = replace(kept, retries=number)
        return best

    def _retries(self) -> list[tuple[int, AttentionWindow | None]]:
        """Number and window of each retry; without dropout another seed changes nothing."""
        config = self.config
        drawn = config.retries if self.model.prenet.dropout > 0 else 0
        windows: list[AttentionWindow | None] = [None] * drawn
        if config.retries and config.attention_window is not None:
            ahead = config.attention_window
            windows.append(AttentionWindow(ahead, ahead // 2))
        return list(enumerate(windows, 1))

    def _takes(
        self, parts: Sequence[Part], number: int, window: AttentionWindow | None
    ) -> list[Taken]:
        limits = [limits_of(self.config, len(p.numbers), self.frames_per_s) for p in parts]
        most = [limit.max_frames for limit in limits]
        rows = self._rows(parts, number, most, self.config.stop_threshold, window)
        wanted = [
            self._wanted(row, limit, held=window is not None)
            for row, limit in zip(rows, limits, strict=True)
        ]
        # On, by running anew: counter-based noise makes the frames up to there the same again.
        more = [i for i, row in enumerate(rows) if wanted[i] > len(row.mel)]
        if more:
            frames = [wanted[i] for i in more]
            longer = self._rows([parts[i] for i in more], number, frames, DEAF, window)
            for i, row in zip(more, longer, strict=True):
                rows[i] = row
        return [
            self._end(row, part, limit, held=window is not None)
            for row, part, limit in zip(rows, parts, limits, strict=True)
        ]

    def _wanted(self, row: "_Row", limit: Limits, *, held: bool) -> int:
        """Frames to look at of a run that was ended by the stop head: to its tail, or all."""
        frames = len(row.mel)
        too_soon = frames < limit.min_frames
        if held and not too_soon:
            too_soon = self._spoken(row.alignments.mean(0), limit) is None
        return (
            limit.max_frames
            if too_soon
            else min(frames + self.config.tail_frames, limit.max_frames)
        )

    def _rows(
        self,
        parts: Sequence[Part],
        number: int,
        max_frames: Sequence[int],
        threshold: float,
        window: AttentionWindow | None,
    ) -> list["_Row"]:
        device = self.model.mel_mean.device
        symbols = pad_sequence([torch.tensor(part.numbers) for part in parts], batch_first=True)
        missing = self.config.max_symbols_per_piece - symbols.shape[1]
        symbols = F.pad(symbols, (0, max(0, missing)))  # the same padding in every batch
        identities = torch.tensor([_identity(part.identity, number) for part in parts])
        run = (self.mirror if window is None else self.held_mirror).free_run(
            symbols.to(device),
            torch.tensor([len(part.numbers) for part in parts], device=device),
            torch.tensor(max_frames, device=device),
            noise=PrenetNoise(self.config.seed, identities.to(device)),
            speakers=torch.tensor([part.speaker for part in parts], device=device),
            stop_threshold=threshold,
            precision=self.precision if window is None else "float32",
            window=window,
        )
        return [_row(run, i, len(p.numbers), self.frames_a_step) for i, p in enumerate(parts)]

    def _end(self, row: "_Row", part: Part, limit: Limits, *, held: bool) -> Taken:
        """Where ``row`` ends and what is wrong with it; held to its way, not before it is spoken.

        Attention that is held comes to the end of the text, so that the stop head is heard there
        alone; left alone, a stop before that is a fault to be seen.
        """
        begin, alignment = limit.min_frames, row.alignments.mean(0)
        spoken = self._spoken(alignment, limit) if held else None
        if spoken is not None:
            begin = max(begin, spoken * self.frames_a_step + 1)
        stop = stop_frame(row.stop_probability, self.config.stop_threshold, begin)
        if stop is not None:
            stopped_by = StoppedBy.stop
            end = min(stop + self.config.tail_frames, len(row.mel))
        else:
            stopped_by, end = self._cut(row, self._spoken(alignment, limit))
        row = row.cut(end, self.frames_a_step)
        take = Take(
            mel=row.mel,
            alignment=alignment[: row.alignments.shape[1]],
            symbols=[self.symbols[n] for n in part.numbers],
            stopped=stopped_by is StoppedBy.stop,
            min_frames=limit.min_frames,
            tail_frames=self.config.tail_frames,
        )
        faults = self.judge(take)
        silent = self.model.mel_mean.new_tensor(self.mel.log_floor).log()
        mel = torch.where(row.mel.isfinite(), row.mel, silent)
        return Taken(mel, row.alignments, row.stop_probability, stopped_by, faults, held)

    def _spoken(self, alignment: Tensor, limit: Limits) -> int | None:
        return spoken_step(
            alignment,
            min_step=limit.min_frames // self.frames_a_step,
            min_on_way=self.config.faults.min_on_way,
        )

    def _cut(self, row: "_Row", spoken: int | None) -> tuple[StoppedBy, int]:
        """A run that never stopped, up to the end of its speech if it has one."""
        if spoken is None:
            return StoppedBy.max_frames, len(row.mel)
        end = speech_end(
            self.judge.sounding(row.mel),
            spoken,
            frames=self.frames_a_step,
            max_tail_frames=round(MAX_SOUND_AFTER_S * self.frames_per_s),
            tail_frames=self.config.tail_frames,
        )
        return StoppedBy.end_of_speech, end


@dataclass(frozen=True)
class _Row:
    """One utterance of a free run."""

    mel: Tensor
    alignments: Tensor
    stop_probability: Tensor

    def cut(self, frames: int, frames_a_step: int) -> "_Row":
        steps = -(-frames // frames_a_step)
        return _Row(self.mel[:frames], self.alignments[:, :steps], self.stop_probability[:frames])


def _row(run: FreeRun, number: int, num_symbols: int, frames_a_step: int) -> _Row:
    frames = int(run.lengths[number])
    steps = -(-frames // frames_a_step)
    return _Row(
        run.mel[number, :frames].clone(),
        run.alignments[number, :, :steps, :num_symbols].clone(),
        run.stop_probability[number, :frames].clone(),
    )


def _identity(identity: int, number: int) -> int:
    """Of the noise of attempt ``number``; that of the piece itself for the first."""
    if number == 0:
        return identity
    text = identity.to_bytes(4, "little") + number.to_bytes(4, "little")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
