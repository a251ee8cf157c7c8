"""What is wrong with the speakers of a corpus."""

from dataclasses import dataclass

from profforce.data.check import manifest_kinds as kinds
from profforce.data.check.findings import Findings
from profforce.data.check.missing import fold


@dataclass
class _Speaker:
    line: int
    """Where first."""
    num_train: int = 0


class Speakers:
    """Counts of each speaker, None standing for "no speaker"."""

    def __init__(self) -> None:
        self._known: dict[str | None, _Speaker] = {}

    def add(self, name: str | None, line: int, held_out: int) -> None:
        """Count an utterance of the training (0) or validation (1) side, or neither (-1)."""
        speaker = self._known.setdefault(name, _Speaker(line))
        speaker.num_train += held_out == 0

    def report(self, findings: Findings) -> None:
        """Note what is wrong once all lines are counted."""
        if None in self._known and len(self._known) > 1:
            findings.at(self._known[None].line, kinds.SPEAKER_MISSING)
        first: dict[str, str] = {}
        for name, speaker in self._known.items():
            if name is None:
                continue
            other = first.setdefault("".join(fold(name).split()), name)
            if other != name:
                findings.at(speaker.line, kinds.SPEAKER_ALIKE, f"{name!r} and {other!r}")
            if not speaker.num_train:
                findings.at(speaker.line, kinds.SPEAKER_UNTRAINED, repr(name))
