"""What occurs twice that should not, and what is on both sides of the split."""

from array import array

from profforce.data.check import audio_kinds, manifest_kinds, text_kinds
from profforce.data.check.findings import Findings
from profforce.data.check.table import Table, repeated


def check_repeats(table: Table, findings: Findings) -> None:
    """Note ids, texts and audio files that occur on more than one line."""

    def other(position: int) -> str:
        return f"also in line {table.lines[position]}"

    again: set[int] = set()
    for position, first in repeated(table.ids):
        again.add(position)
        table.held_out[position] = -1
        same = table.contents[position] == table.contents[first]
        kind = manifest_kinds.LINE_DUPLICATE if same else manifest_kinds.ID_DUPLICATE
        findings.at(table.lines[position], kind, other(first))
    for position, first in repeated(table.folded_ids):
        if table.ids[position] != table.ids[first]:
            findings.at(table.lines[position], manifest_kinds.ID_CASE, other(first))
    for position, first in repeated(table.audio):
        if position not in again:
            findings.at(table.lines[position], audio_kinds.AUDIO_SHARED, other(first))
    for position, first in repeated(table.words):
        if position not in again:
            findings.at(table.lines[position], text_kinds.TEXT_DUPLICATE, other(first))
            if _leaks(table, position, first):
                findings.at(table.lines[position], manifest_kinds.SPLIT_TEXT, other(first))


def check_sounds(table: Table, sounds: "array[int]", findings: Findings) -> None:
    """As above for the digests of what was heard, one a row, 0 where nothing was."""
    for position, first in repeated(sounds):
        if table.audio[position] != table.audio[first]:
            got = f"also in line {table.lines[first]}"
            findings.at(table.lines[position], audio_kinds.AUDIO_SAME_SOUND, got)
        if _leaks(table, position, first):
            got = f"also in line {table.lines[first]}"
            findings.at(table.lines[position], manifest_kinds.SPLIT_AUDIO, got)


def check_sides(table: Table, findings: Findings) -> None:
    """Note a side of the split that is left without an utterance."""
    for side, kind in ((0, manifest_kinds.SPLIT_NO_TRAIN), (1, manifest_kinds.SPLIT_NO_VALID)):
        if side not in table.held_out:
            findings.add_file(kind, findings.manifest)


def _leaks(table: Table, one: int, other: int) -> bool:
    return {table.held_out[one], table.held_out[other]} == {0, 1}
