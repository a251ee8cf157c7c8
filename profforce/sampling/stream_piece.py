"""One piece as it is being spoken: its frames once they are certain, and what became of it.

Shapes: S symbols, T mel frames, n or k of them at a time, M mel channels, R reduction factor, U
decoder steps, G guided heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.models.metrics import alignment_coverage, mean_alignment
from profforce.models.stream import FrameStream, RefineStream, Steps
from profforce.nn.noise import PrenetNoise
from profforce.sampling.faults import Fault, Take
from profforce.sampling.script import Part
from profforce.sampling.stopping import (
    QUIET_FRAMES,
    StoppedBy,
    limits_of,
    speech_end,
    spoken_step,
    stop_frame,
)
from profforce.sampling.stream_way import Follower
from profforce.sampling.takes import MAX_SOUND_AFTER_S, Taker


@dataclass(frozen=True)
class PieceEnd:
    """What became of a piece whose last audio is out."""

    text: str
    start_s: float
    num_frames: int
    num_symbols: int
    stopped_by: StoppedBy
    faults: list[Fault]
    """What is wrong with it; times are the piece's own."""
    coverage: float
    """Share of the symbols that were attended."""


class PieceStream:
    """The first take of a piece, ended by the rules of the whole.

    Frames come out when nothing can change them any more: once the postnet has seen what is around
    them, and, where the text seems to be spoken, once it is known that the stop head ends it there
    or that it has said nothing for ``grace`` frames. Then the piece is cut where its sound ends;
    the whole would wait for the stop head up to ``max_seconds_per_symbol``.
    """

    def __init__(self, taker: Taker, part: Part) -> None:
        self._taker, self._part, config = taker, part, taker.config
        self._limits = limits_of(config, len(part.numbers), taker.frames_per_s)
        self._rate = taker.frames_a_step
        missing = max(0, config.max_symbols_per_piece - len(part.numbers))
        device = taker.model.mel_mean.device
        self._frames = FrameStream(
            taker.mirror,
            F.pad(torch.tensor([part.numbers]), (0, missing)).to(device),
            torch.tensor([len(part.numbers)], device=device),
            -(-self._limits.max_frames // self._rate),
            noise=PrenetNoise(config.seed, torch.tensor([part.identity], device=device)),
            speakers=torch.tensor([part.speaker], device=device),
            precision=taker.precision,
        )
        self._refine = RefineStream(taker.mirror)
        self._follower = Follower(
            min_step=self._limits.min_frames // self._rate, min_on_way=config.faults.min_on_way
        )
        grace_s = max(config.faults.max_tail_s, MAX_SOUND_AFTER_S)
        self.grace = round(grace_s * taker.frames_per_s) + QUIET_FRAMES
        self._patience = self.grace
        self._silence = taker.model.mel_mean.new_tensor(taker.mel.log_floor).log()
        self._stop: list[Tensor] = []
        self._alignments: list[Tensor] = []
        self._mel: list[Tensor] = []
        """Refined frames, of which the last ones may not be out."""
        self._held = torch.zeros(0, taker.mel.num_mels, device=device)
        self._seen = self._released = 0
        self._end: int | None = None
        self._was_too_soon = False
        """The stop head spoke up before anybody could have said it: the run is to its limit."""
        self._cut_before_postnet = False
        self._stopped_by = StoppedBy.max_frames

    @property
    def done(self) -> bool:
        """All frames are out."""
        return self._released == self._end

    def advance(self, num_steps: int) -> Tensor:
        """Take ``num_steps`` decoder steps; the frames ``[k, M]``, k >= 0, that are then certain.

        Natural-log amplitude; silence in place of values that are not finite.
        """
        if self._frames.num_steps < self._frames.max_steps:
            self._take(self._frames.advance(num_steps))
        if self._end is None:
            self._cut()
        limit = self._released + len(self._held)
        if self._end is not None:
            limit = min(limit, self._end)
        elif self._follower.spoken is not None:
            limit = min(limit, (self._follower.spoken + 1) * self._rate)
        ready = max(limit - self._released, 0)
        out, self._held = self._held[:ready], self._held[ready:]
        self._released += ready
        return torch.where(out.isfinite(), out, self._silence)

    def end(self, start_s: float) -> PieceEnd:
        """Judge the piece, which is ``done`` and began at ``start_s``."""
        assert self._end is not None
        alignments = torch.cat(self._alignments, 1)[:, : -(-self._end // self._rate)]
        take = Take(
            mel=torch.cat(self._mel)[: self._end],
            alignment=alignments.mean(0),
            symbols=[self._taker.symbols[n] for n in self._part.numbers],
            stopped=self._stopped_by is StoppedBy.stop,
            min_frames=self._limits.min_frames,
            tail_frames=self._taker.config.tail_frames,
        )
        return PieceEnd(
            text=self._part.text,
            start_s=start_s,
            num_frames=self._end,
            num_symbols=len(self._part.numbers),
            stopped_by=self._stopped_by,
            faults=self._taker.judge(take),
            coverage=alignment_coverage(mean_alignment(alignments).cpu()),
        )

    def _take(self, steps: Steps) -> None:
        """Look for the end in ``steps``, and refine the frames up to it."""
        begin, limit = self._seen, self._limits.max_frames
        frames = steps.frames[: limit - begin]
        self._seen += len(frames)
        self._alignments.append(steps.alignments[..., : len(self._part.numbers)])
        self._stop.append(steps.stop_probability[: limit - begin])
        self._follower.follow(self._alignments[-1].mean(0))
        if self._end is None:
            self._hear(begin)
        last = self._seen == limit
        if self._end is not None and self._cut_before_postnet:
            frames = frames[: self._end - begin]
            last = self._seen >= self._end
        self._mel.append(self._refine.push(frames, last))
        self._held = torch.cat([self._held, self._mel[-1]])

    def _hear(self, begin: int) -> None:
        """Whether the stop head ends it in the frames from ``begin`` on."""
        threshold, heard = self._taker.config.stop_threshold, self._stop[-1]
        too_soon = stop_frame(heard[: max(self._limits.min_frames - 1 - begin, 0)], threshold, 1)
        self._was_too_soon |= too_soon is not None
        stop = stop_frame(heard, threshold, max(self._limits.min_frames - begin, 1))
        if stop is not None:
            self._stopped_by = StoppedBy.stop
            self._end = min(begin + stop + self._taker.config.tail_frames, self._limits.max_frames)
            self._cut_before_postnet = not self._was_too_soon

    def _cut(self) -> None:
        """Where it ends without the stop head: at the limit, or where its speech does."""
        at_limit = self._seen == self._limits.max_frames
        spoken, refined = self._follower.spoken, self._released + len(self._held)
        late = spoken is not None and refined >= (spoken + 1) * self._rate + self._patience
        if not (at_limit or late):
            return
        step = spoken_step(
            torch.cat(self._alignments, 1).mean(0),
            min_step=self._limits.min_frames // self._rate,
            min_on_way=self._taker.config.faults.min_on_way,
        )
        if step is not None:
            end = speech_end(
                self._taker.judge.sounding(torch.cat(self._mel)),
                step,
                frames=self._rate,
                max_tail_frames=round(MAX_SOUND_AFTER_S * self._taker.frames_per_s),
                tail_frames=self._taker.config.tail_frames,
            )
            self._end, self._stopped_by = max(end, self._released), StoppedBy.end_of_speech
        elif at_limit:
            self._end = self._limits.max_frames
        else:
            self._patience += self.grace
