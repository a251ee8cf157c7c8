"""The verdict on one utterance: which letters were dropped, said again or made up, and the stop.

T mel frames, M mel channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from profforce.audio.mel import require_mel
from profforce.config import MelConfig
from profforce.evaluation.edits import Edits, edits_between
from profforce.evaluation.letters import LAST_PAUSE_FRAMES, PAUSE, Templates, Token, frames_in
from profforce.evaluation.recognise import Run, recognise

HELD = 3.0
"""A letter or pause that lasts so many times too long counts as said again, each time anew."""
TOLERATED = 1
"""Letters that may be wrong before the utterance counts as failed."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with one utterance."""

    edits: Edits
    num_symbols: int
    """Letters that should have been said."""
    early: bool
    """Ended before the last letter was heard."""
    late: bool
    """Was not ended by the stop head, spoke on after the last letter, or hummed on."""

    @property
    def failed(self) -> bool:
        """More than one letter wrong, or a wrong stop."""
        return self.edits.total > TOLERATED or self.early or self.late


def judge(
    mel: Tensor,
    tokens: Sequence[Token],
    templates: Templates,
    config: MelConfig,
    *,
    stopped: bool = True,
) -> Verdict:
    """Compare what ``mel`` says with what it should.

    Args:
        mel: ``[T, M]``, natural-log amplitude, T >= 1.
        tokens: what should be said, at least one.
        templates: of the same mel definition.
        config: that definition.
        stopped: whether the stop head ended it.

    Raises:
        UserError: if the mel holds values that are not finite.
    """
    require_mel(mel, config)
    runs = recognise(mel, templates)
    hummed = runs.pop().frames if runs[-1].symbol == PAUSE else 0
    longest_pause = HELD * frames_in(LAST_PAUSE_FRAMES, config)
    edits = edits_between([token.symbol for token in tokens], _said(runs, tokens, longest_pause))
    return Verdict(
        edits=edits,
        num_symbols=len(tokens),
        early=edits.missing_tail > 0,
        late=not stopped or hummed > longest_pause or edits.extra_tail > TOLERATED,
    )


def _said(runs: Sequence[Run], tokens: Sequence[Token], longest_pause: float) -> list[str]:
    """The letters of ``runs``; pauses only where they are too long, what is held several times."""
    lengths: list[tuple[str, int]] = []
    for run in runs:
        if run.symbol == PAUSE and run.frames <= longest_pause:
            continue
        if lengths and lengths[-1][0] == run.symbol:  # but for a short pause, one and the same
            lengths[-1] = (run.symbol, lengths[-1][1] + run.frames)
        else:
            lengths.append((run.symbol, run.frames))
    usual: dict[str, int] = {}
    for token in tokens:
        usual[token.symbol] = max(usual.get(token.symbol, 0), token.frames)
    other = max(usual.values())
    said: list[str] = []
    for symbol, frames in lengths:
        said += [symbol] * (1 + int(frames / (HELD * usual.get(symbol, other))))
    return said
