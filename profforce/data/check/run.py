"""Check a whole corpus: find everything that is wrong with it, change nothing."""

from dataclasses import dataclass
from pathlib import Path

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.check import manifest_kinds as kinds
from profforce.data.check.findings import KEPT, Findings
from profforce.data.check.folder import check_folder
from profforce.data.check.kinds import DefectError, Severity
from profforce.data.check.levels import Limits
from profforce.data.check.listen import AudioPass
from profforce.data.check.mend import MendReport
from profforce.data.check.repeats import check_repeats, check_sides, check_sounds
from profforce.data.check.rows import ManifestPass, Rows
from profforce.data.files import write_json
from profforce.data.manifest import METADATA, corpus_folder, corpus_root, manifests
from profforce.data.progress import Progress, silent
from profforce.errors import UserError


@dataclass
class CheckReport:
    """What was found."""

    root: Path
    findings: Findings
    num_utterances: int = 0
    """Lines that say something and could be read."""
    hours: float | None = None
    """Of audio that training would use; None when no audio was looked at."""
    mended: MendReport | None = None

    @property
    def is_usable(self) -> bool:
        """Whether training would accept the corpus."""
        return self.findings.count(Severity.error) == 0

    def as_json(self) -> dict[str, object]:
        """Everything, in plain types."""
        found = self.findings
        return {
            "root": str(self.root),
            "manifest": str(found.manifest),
            "utterances": self.num_utterances,
            "hours": self.hours,
            **{f"{severity}s": found.count(severity) for severity in Severity},
            "kinds": [
                {
                    "code": kind.code,
                    "severity": kind.severity,
                    "what": kind.what,
                    "expected": kind.expected,
                    "remedy": kind.remedy,
                    "count": found.counts[kind.code],
                    "places": [place._asdict() for place in found.places(kind.code)],
                }
                for kind in found.found()
            ],
            "fix": self.mended
            and {
                "path": str(self.mended.path),
                "lines": self.mended.num_lines,
                "done": dict(self.mended.done),
            },
        }


def check_corpus(
    data: DataConfig,
    text: TextConfig,
    mel: MelConfig,
    *,
    with_audio: bool = True,
    keep: int | None = KEPT,
    progress: Progress = silent,
) -> CheckReport:
    """Everything that is wrong with the corpus at ``data.root``, ``data.num_utterances`` or not.

    ``with_audio=False`` looks at the manifest alone. ``keep``: places kept for each kind, all
    when None. Raises :class:`UserError` only where there is no folder or no front end.
    """
    if data.shards is not None:
        raise UserError(
            "tar files are not checked here",
            where=f"data.shards={data.shards}",
            expected="a folder with a manifest, as data.root",
            remedy="check a corpus before it is packed; training names the first defect of a tar",
        )
    root = corpus_root(data)
    if not root.is_dir():
        made = f"run: profforce data prepare {data.kind} data.root={data.root}"
        remedy = "check data.root" if data.kind is DataKind.custom else made
        raise UserError("no such folder", where=root, remedy=remedy)
    findings, is_there = _open(root, keep)
    report = CheckReport(root, findings)
    if not is_there:
        return report
    rows = ManifestPass(findings, data, text, with_audio=with_audio).run(progress)
    report.num_utterances = len(rows.table)
    check_repeats(rows.table, findings)
    if with_audio:
        report.hours = _listen(rows, Limits(data, mel), findings, progress)
    rows.speakers.report(findings)
    if len(rows.table) and (max(rows.table.held_out) >= 0 or not findings.count(Severity.error)):
        check_sides(rows.table, findings)
    return report


def _open(root: Path, keep: int | None) -> tuple[Findings, bool]:
    """An empty report on the corpus' manifest, and whether there is one to read."""
    try:
        folder = corpus_folder(root)
    except DefectError as defect:
        findings = Findings(root, keep=keep)
        findings.refused(defect)
        return findings, False
    present = manifests(folder)
    findings = Findings(present[0] if present else folder / METADATA, keep=keep)
    if not present:
        findings.add_file(kinds.MANIFEST_MISSING, folder)
    if len(present) > 1:
        got = f"{present[0].name} and {present[1].name}; the first is checked here"
        findings.add_file(kinds.MANIFEST_BOTH, folder, got)
    return findings, bool(present)


def _listen(rows: Rows, limits: Limits, findings: Findings, progress: Progress) -> float:
    listening = AudioPass(rows, limits, findings)
    listening.run(progress)
    check_sounds(rows.table, listening.sounds, findings)
    if len(rows.table):  # else every file would be one that no line names
        check_folder(findings.manifest.parent, rows.table, findings, progress)
    return listening.seconds / 3600


def write_report(report: CheckReport, target: Path) -> None:
    """Write the report as JSON to ``target``, which may be an older report but no manifest."""
    if target.resolve() == report.findings.manifest.resolve():
        raise UserError("this is the manifest itself", where=target, remedy="name another file")
    write_json(target, report.as_json())
