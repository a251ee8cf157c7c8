"""A corrected copy of a manifest: what can be mended safely is, lines with errors are left out."""

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from profforce.data.check.findings import Findings
from profforce.data.check.lines import decode_line, raw_lines
from profforce.data.check.texts import visible
from profforce.data.files import aside
from profforce.data.manifest import MANIFEST, json_object
from profforce.errors import UserError

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
    report, part = MendReport(target), aside(target)
    broken = {int(line) for line in findings.broken_lines()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for line in _mended(manifest, broken, report):
                file.write(line + "\n")
                report.num_lines += 1
        if not report.num_lines:
            raise UserError(
                "no line is left to write",
                where=manifest,
                got="; ".join(f"{what}: {count}" for what, count in report.done.items()) or None,
                remedy="mend the manifest by hand",
            )
        part.replace(target)
    except OSError as error:
        raise UserError("cannot be written", where=target, got=error.strerror) from error
    finally:
        part.unlink(missing_ok=True)
    return report


def _mended(manifest: Path, broken: set[int], report: MendReport) -> Iterator[str]:
    is_json = manifest.name == MANIFEST
    for number, raw in raw_lines(manifest):
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            report.done["byte-order marks removed"] += 1
        if number in broken:
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
