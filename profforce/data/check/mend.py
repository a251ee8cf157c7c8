"""A corrected copy of a manifest: what can be mended safely is, lines with errors are left out."""

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from profforce.data.check import manifest_kinds as kinds
from profforce.data.check.findings import Findings
from profforce.data.check.lines import decode_line, raw_lines
from profforce.data.check.texts import visible
from profforce.data.files import aside
from profforce.data.manifest import MANIFEST, METADATA, json_object
from profforce.errors import UserError

AS_A_WHOLE = (
    kinds.MANIFEST_DESCRIPTION,
    kinds.MANIFEST_EMPTY,
    kinds.MANIFEST_MISSING,
    kinds.MANIFEST_UNREADABLE,
    kinds.MANIFEST_UTF16,
)
"""Kinds after which no line is left to look at."""
TEXT_KEYS = ("text", "normalized_text")


@dataclass
class MendReport:
    """What was done."""

    path: Path
    num_lines: int = 0
    """Written."""
    done: Counter[str] = field(default_factory=Counter)
    """What to how often."""


def refuse_existing(target: Path) -> None:
    """Raise unless ``target`` is a new file: nothing is overwritten, least of all a manifest."""
    try:
        present = target.exists() or target.is_symlink()
    except OSError as error:
        raise UserError("cannot be written", where=target, got=error.strerror) from error
    if present:
        raise UserError(
            "exists already", where=target, remedy="name a new file for --fix, or remove this one"
        )


def mend(findings: Findings, target: Path) -> MendReport:
    """Write a corrected copy of the manifest to ``target``, which appears whole or not at all."""
    manifest = findings.manifest
    refuse_existing(target)
    if (
        target.name in (MANIFEST, METADATA)
        and target.absolute().parent == manifest.absolute().parent
    ):
        raise UserError(
            "would be a second manifest of the corpus, which is then refused",
            where=target,
            remedy="choose another name, and replace the manifest by it when you have seen it",
        )
    for kind in AS_A_WHOLE:
        if findings.counts[kind.code]:
            raise _nothing_left(manifest, kind.what)
    report, part = MendReport(target), aside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for line in _mended(findings, report):
                file.write(line + "\n")
                report.num_lines += 1
        if not report.num_lines:
            done = "; ".join(f"{what}: {count}" for what, count in report.done.items())
            raise _nothing_left(manifest, done or "an empty file")
        part.replace(target)
    except OSError as error:
        raise UserError("cannot be written", where=target, got=error.strerror) from error
    finally:
        with suppress(OSError):  # there is none where the folder could not be made
            part.unlink()
    return report


def _nothing_left(manifest: Path, got: str) -> UserError:
    what, remedy = "no line is left to write", "mend the manifest by hand"
    return UserError(what, where=manifest, got=got, remedy=remedy)


def _mended(findings: Findings, report: MendReport) -> Iterator[str]:
    manifest, broken, passed = findings.manifest, findings.broken_lines(), 0
    is_json = manifest.name == MANIFEST
    for number, raw in raw_lines(manifest):
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            report.done["byte-order marks removed"] += 1
        if passed < len(broken) and broken[passed] == number:
            passed += 1
            report.done["lines with errors left out"] += 1
            continue
        line = decode_line(f"{manifest}:{number}", number, raw)
        if not line:
            report.done["blank lines left out"] += 1
            continue
        if raw.endswith(b"\r\n"):
            report.done["line ends converted"] += 1
        if not raw.endswith(b"\n"):
            report.done["line ends added"] += 1
        clean = _clean_json(line) if is_json else _clean_metadata(line)
        if clean != line:
            report.done["texts cleaned of invisible characters and spaces"] += 1
        yield clean


def _clean_metadata(line: str) -> str:
    """The id stays as it is: the audio is named after it."""
    name, *texts = line.split("|")
    return "|".join([name.strip(), *(visible(text) for text in texts)])


def _clean_json(line: str) -> str:
    row = json_object("the manifest", line)
    clean = {
        key: visible(value) if key in TEXT_KEYS and isinstance(value, str) else value
        for key, value in row.items()
    }
    return line if clean == row else json.dumps(clean, ensure_ascii=False)
