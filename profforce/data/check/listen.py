"""The pass over the audio files, by several processes where there are many."""

from array import array
from collections import Counter
from collections.abc import Iterator

from profforce.data.check import audio_kinds as kinds
from profforce.data.check.findings import Findings
from profforce.data.check.levels import Limits, rate_defects, sound_defects
from profforce.data.check.rows import Rows
from profforce.data.check.sound import Listener, Refusal, Sound
from profforce.data.parallel import map_unordered, num_cpus
from profforce.data.progress import Progress

PARALLEL_FROM = 500
"""Files from which starting processes (half a second each) pays."""


class AudioPass:
    """Listens to every audio file that the manifest's rows name."""

    def __init__(self, rows: Rows, limits: Limits, findings: Findings) -> None:
        self.rows, self.limits, self.findings = rows, limits, findings
        self.seconds = 0.0
        """Of what training uses."""
        self.sounds = array("Q", bytes(8 * len(rows.table)))
        """Digest of each row's sound, 0 where there is none."""
        self._rates: Counter[int] = Counter()

    def run(self, progress: Progress) -> None:
        """Listen to all of them; rows that training would not use are marked so."""
        for done, (k, heard) in enumerate(self._in_order(), 1):
            if isinstance(heard, Sound):
                self._sound(k, heard)
            else:
                self._refuse(k, heard)
            progress("listening", done, len(self.rows.paths))
        if len(self._rates) > 1:
            got = ", ".join(f"{count} of {hz} Hz" for hz, count in self._rates.most_common(5))
            self.findings.add_file(kinds.AUDIO_MIXED_RATES, self.findings.manifest, got)

    def _in_order(self) -> Iterator[tuple[int, Sound | Refusal]]:
        """Results in the manifest's order, so that reports are the same each time."""
        paths = self.rows.paths
        num_workers = num_cpus() if len(paths) >= PARALLEL_FROM else 1
        data, mel = self.limits.data, self.limits.mel
        listener = Listener(self.findings.manifest.parent, mel.sample_rate, data.trim_db)
        waiting: dict[int, Sound | Refusal] = {}
        following = 0
        for position, heard in map_unordered(listener, paths, num_workers=num_workers):
            waiting[position] = heard
            while following in waiting:
                yield following, waiting.pop(following)
                following += 1

    def _refuse(self, k: int, refusal: Refusal) -> None:
        position = self.rows.positions[k]
        line = self.rows.table.lines[position]
        self.findings.at(line, refusal.kind, refusal.got, self.rows.paths[k])
        self.rows.table.held_out[position] = -1

    def _sound(self, k: int, sound: Sound) -> None:
        position, table = self.rows.positions[k], self.rows.table
        line, path = table.lines[position], self.rows.paths[k]
        self.sounds[position] = sound.digest
        self._rates[sound.sample_rate] += 1
        self.findings.all_at(line, sound_defects(sound, self.limits), path)
        if self.limits.skips(sound):
            table.held_out[position] = -1
            return
        self.seconds += self.limits.seconds(sound)
        before = self.findings.num_broken
        num_symbols = table.num_symbols[position]
        self.findings.all_at(line, rate_defects(sound, num_symbols, self.limits), path)
        if self.findings.num_broken > before:
            table.held_out[position] = -1
