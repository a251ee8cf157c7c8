"""Findings as they come in: counted all, kept as far as they are shown."""

from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profforce.data.check.catalogue import KINDS
from profforce.data.check.kinds import DefectError, Kind, Severity

KEPT = 1000
"""Places kept for each kind, so that a corpus of nothing but defects needs no gigabytes."""


class Finding(NamedTuple):
    """One defect at one place."""

    where: str
    """``file:line``, with the audio file where it is that one's defect, or a file."""
    got: str | None = None
    expected: str | None = None
    """When it says more than the kind's."""


class Findings:
    """What was found so far in the corpus of ``manifest``."""

    def __init__(self, manifest: Path, *, keep: int | None = KEPT) -> None:
        """``keep``: places kept for each kind; all when None."""
        self.manifest = manifest
        self.keep = keep
        self.counts: Counter[str] = Counter()
        self._places: dict[str, list[Finding]] = {}
        self._broken = array("Q")

    def add(self, kind: Kind, finding: Finding, line: int = 0) -> None:
        """Note a defect; ``line`` (from 1) is its line of the manifest, if it has one."""
        self.counts[kind.code] += 1
        if kind.severity is Severity.error and line:
            self._broken.append(line)
        places = self._places.setdefault(kind.code, [])
        if self.keep is None or len(places) < self.keep:
            places.append(finding)

    @property
    def num_broken(self) -> int:
        """Errors with a line so far."""
        return len(self._broken)

    def add_file(self, kind: Kind, path: Path, got: str | None = None) -> None:
        """Note a defect of a file as a whole."""
        self.add(kind, Finding(str(path), got))

    def at(self, line: int, kind: Kind, got: str | None = None, audio: str | None = None) -> None:
        """Note a defect of a line, or of the audio file that it names."""
        where = f"{self.manifest}:{line}" + (f": {audio}" if audio else "")
        self.add(kind, Finding(where, got), line)

    def refused(self, defect: DefectError, line: int = 0) -> None:
        """Note what the reader of manifests refused."""
        self.add(defect.kind, Finding(defect.where, defect.got, defect.expected), line)

    def all_at(
        self, line: int, found: Iterable[tuple[Kind, str | None]], audio: str | None = None
    ) -> None:
        """Note several defects of one line."""
        for kind, got in found:
            self.at(line, kind, got, audio)

    def places(self, code: str) -> list[Finding]:
        """The places kept of a kind, in the order in which they were found."""
        return self._places.get(code, [])

    def found(self) -> list[Kind]:
        """Kinds that were found, errors first."""
        return [kind for code, kind in KINDS.items() if self.counts[code]]

    def count(self, severity: str) -> int:
        """Findings of one severity."""
        return sum(self.counts[kind.code] for kind in self.found() if kind.severity == severity)

    def broken_lines(self) -> npt.NDArray[np.uint64]:
        """uint64, sorted: lines with at least one error."""
        return np.unique(np.asarray(self._broken, dtype=np.uint64))
