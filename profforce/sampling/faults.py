"""What went wrong with a spoken piece: from the way of its attention and from its signal.

Counting jumps of the attention's argmax would call good speech failed, for attention rests where a
model finds it useful: on one symbol of a syllable, to and fro between neighbours, several symbols
on in a step of several frames. So the best monotonic way through the text is found first, and a
piece is judged by what that way leaves out, by where attention is when it is off the way, by how
long it stays, and by the energy of the mel.

Shapes: T mel frames, M mel channels, U decoder steps, S symbols.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from profforce.config import FaultConfig
from profforce.sampling.stopping import first_of_last
from profforce.sampling.way import Way, find_way, stretches

ASTRAY = 0.35
"""Share of the attention on the way below which a step is off it."""
HURRY_S = 0.2
"""Span over which the pace is measured: a short word."""
HOLD_RATIO = 6.0
"""Times the piece's own median that attention may stay on a symbol."""
MAX_QUOTED = 24


class FaultKind(StrEnum):
    """Ways in which free-running speech fails."""

    not_finite = "not_finite"
    silence = "silence"
    skipping = "skipping"
    repeating = "repeating"
    babbling = "babbling"
    early_stop = "early_stop"
    no_stop = "no_stop"


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong, and where in the piece."""

    kind: FaultKind
    start_s: float
    end_s: float
    detail: str

    def later(self, seconds: float) -> "Fault":
        """The same, timed from ``seconds`` before."""
        return replace(self, start_s=self.start_s + seconds, end_s=self.end_s + seconds)


@dataclass(frozen=True)
class Take:
    """One attempt at a piece, as it is to be judged."""

    mel: Tensor
    """``[T, M]``, natural-log amplitude."""
    alignment: Tensor
    """``[U, S]``, mean of the guided heads."""
    symbols: Sequence[str]
    stopped: bool
    """The stop head ended it."""
    min_frames: int
    """Frames before which the stop head was not heard."""
    tail_frames: int = 0
    """Frames kept after the stop."""


class Judge:
    """Finds the faults of takes of one model."""

    def __init__(
        self, limits: FaultConfig, mel_mean: Tensor, mel_std: Tensor, *, frame_s: float, frames: int
    ) -> None:
        """``mel_mean [M]`` and ``mel_std [M]`` of the training mels; ``frames`` a decoder step."""
        self.limits, self.frame_s, self.step_s = limits, frame_s, frame_s * frames
        self.quiet_level = float(mel_mean.mean() - limits.quiet_deviations * mel_std.mean())

    def __call__(self, take: Take) -> list[Fault]:
        """The faults of ``take``, none for speech that went well; frames first, then its way."""
        found = list(self._signal(take))
        if not any(fault.kind is FaultKind.not_finite for fault in found):
            way = find_way(take.alignment)
            found += self._way(way, take)
        if not take.stopped:
            end = len(take.mel) * self.frame_s
            found.append(Fault(FaultKind.no_stop, end, end, "the stop head was never sure"))
        return sorted(found, key=lambda fault: (fault.start_s, fault.kind))

    def sounding(self, mel: Tensor) -> NDArray[np.bool_]:
        """``[T]``: frames of ``mel [T, M]`` that are not quiet."""
        level: NDArray[np.float32] = mel.float().mean(1).cpu().numpy()
        return level > self.quiet_level

    def _signal(self, take: Take) -> Iterator[Fault]:
        finite = torch.isfinite(take.mel).all(1).cpu().numpy()
        if not finite.all() or not bool(torch.isfinite(take.alignment).all()):
            bad = np.flatnonzero(~finite)
            first, last = (int(bad[0]), int(bad[-1]) + 1) if len(bad) else (0, len(take.mel))
            detail = f"{len(bad)} frames are nan or inf" if len(bad) else "attention is nan or inf"
            yield self._at_frames(FaultKind.not_finite, first, last, detail)
            return
        sounding = self.sounding(take.mel)
        if sounding.sum() <= take.min_frames / 2:
            detail = f"{sounding.sum() * self.frame_s:.2f} s of sound in all"
            yield self._at_frames(FaultKind.silence, 0, len(sounding), detail)
            return
        for first, last in stretches(~sounding):
            seconds = (last - first) * self.frame_s
            if seconds > self.limits.max_silence_s:
                yield self._at_frames(FaultKind.silence, first, last, f"{seconds:.2f} s of silence")

    def _way(self, way: Way, take: Take) -> Iterator[Fault]:
        on_way = float(way.mass.mean())
        if on_way < self.limits.min_on_way:
            detail = f"only {on_way:.0%} of the attention follows the text"
            yield self._at_steps(FaultKind.babbling, 0, len(way.mass), detail)
            return  # what else could be read from such a way would be chance
        left_out = list(self._left_out(way, take))
        yield from left_out
        for hurry in self._hurry(way, take):  # once for what is both
            if not any(hurry.start_s <= f.end_s and f.start_s <= hurry.end_s for f in left_out):
                yield hurry
        yield from self._astray(way, take)
        yield from self._holds(way, take)

    def _left_out(self, way: Way, take: Take) -> Iterator[Fault]:
        """Symbols that the way passed over; at its end, the text was not spoken to its end."""
        advances = np.diff(way.positions)
        usual = float(np.median(advances[advances > 0])) if (advances > 0).any() else 1.0
        limits = self.limits
        allowed = max(limits.max_skipped_symbols, round(limits.max_skipped_ratio * usual))
        gaps = stretches(~way.attended())
        ends_at = way.num_symbols
        if gaps and gaps[-1][1] == way.num_symbols:
            ends_at, _ = gaps.pop()
        for first, last in gaps:
            if last - first > allowed:
                step = int(np.searchsorted(way.positions, first, side="right"))
                detail = f"left out {_quote(take.symbols, first, last)}"
                yield self._at_steps(FaultKind.skipping, max(step - 1, 0), step, detail)
        spoken = len(take.mel) - take.tail_frames - take.min_frames
        if ends_at <= first_of_last(way.num_symbols):
            detail = f"not spoken: {_quote(take.symbols, ends_at, way.num_symbols)}"
            kind = FaultKind.early_stop if take.stopped else FaultKind.skipping
            yield self._at_frames(kind, len(take.mel), len(take.mel), detail)
        elif spoken <= 0 and take.stopped:
            detail = "the stop head would have ended it before anybody could say it"
            yield self._at_frames(FaultKind.early_stop, 0, len(take.mel), detail)

    def _hurry(self, way: Way, take: Take) -> Iterator[Fault]:
        """Words run over much faster than the piece as a whole: nobody hears them."""
        span = max(1, round(HURRY_S / self.step_s))
        passed = way.positions[span:] - way.positions[:-span]
        if not len(passed):
            return
        mean = float(way.positions[-1] - way.positions[0] + 1) / len(way.positions)
        floor = self.limits.max_symbols_per_s * span * self.step_s
        allowed = max(floor, self.limits.max_hurry * mean * span)
        for first, last in stretches(passed > allowed):
            begin, end = int(way.positions[first]), int(way.positions[last - 1 + span])
            detail = f"hurried over {_quote(take.symbols, begin, end)}"
            yield self._at_steps(FaultKind.skipping, first, last + span, detail)

    def _astray(self, way: Way, take: Take) -> Iterator[Fault]:
        """Off the way, sure of its place, attention says something again; unsure, it babbles."""
        for first, last in stretches(way.mass < ASTRAY):
            if (last - first) * self.step_s <= self.limits.max_astray_s:
                continue
            sure = float(way.focus[first:last].mean()) >= self.limits.min_on_way
            kind = FaultKind.repeating if sure else FaultKind.babbling
            at = int(way.positions[first])
            where = _quote(take.symbols, max(at - 4, 0), at + 5)
            detail = f"attention leaves its way near {where}"
            yield self._at_steps(kind, first, last, detail)

    def _holds(self, way: Way, take: Take) -> Iterator[Fault]:
        """Attention that stays: on a symbol it repeats its sound, after the last one it babbles."""
        last_from = first_of_last(way.num_symbols)
        edges = np.flatnonzero(np.diff(way.positions)) + 1
        runs = np.split(np.arange(len(way.positions)), edges)
        usual = float(np.median([len(run) for run in runs])) * self.step_s
        allowed = max(self.limits.max_hold_s, HOLD_RATIO * usual)
        for run in runs:
            first, last, at = int(run[0]), int(run[-1]) + 1, int(way.positions[run[0]])
            seconds = (last - first) * self.step_s
            if seconds > allowed and at < last_from:
                detail = f"{seconds:.2f} s on {_quote(take.symbols, at, at + 1)}"
                yield self._at_steps(FaultKind.repeating, first, last, detail)
        first = int(np.searchsorted(way.positions, last_from))
        seconds = (len(way.positions) - first) * self.step_s
        if seconds > max(self.limits.max_tail_s, usual):
            detail = f"goes on for {seconds:.2f} s at the end of the text"
            yield self._at_steps(FaultKind.babbling, first, len(way.positions), detail)

    def _at_frames(self, kind: FaultKind, first: int, last: int, detail: str) -> Fault:
        return Fault(kind, first * self.frame_s, last * self.frame_s, detail)

    def _at_steps(self, kind: FaultKind, first: int, last: int, detail: str) -> Fault:
        return Fault(kind, first * self.step_s, last * self.step_s, detail)


def _quote(symbols: Sequence[str], first: int, last: int) -> str:
    said = "".join(symbols[first:last])
    return repr(said if len(said) <= MAX_QUOTED else said[: MAX_QUOTED - 1] + "…")
