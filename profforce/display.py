"""Progress and tables for people, with rich: bars on a terminal, sparse plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from profforce.bench.report import Report as BenchReport
    from profforce.data.check.findings import Finding as Place
    from profforce.data.check.run import CheckReport
    from profforce.data.prepare import PrepareReport
    from profforce.data.progress import Progress as WorkProgress
    from profforce.doctor import Build, Finding
    from profforce.evaluation.report import Report as Measured
    from profforce.training.logs import Report, Reporter

PLAIN_EVERY_S = 5.0
PLAIN_WIDTH = 120
"""Columns of a table that no terminal limits."""
FIRST_PLACES = 3
"""Places of each kind of defect that are shown unless all are asked for."""
MARKS = {True: "ok", None: "-", False: "BROKEN"}


def log_to_stderr() -> None:
    """Send the library's log lines to stderr, for commands that Hydra does not set up."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


@contextmanager
def _above_bar(bar: Progress) -> Iterator[None]:
    """Run ``bar``, with log lines scrolling above it instead of through it."""
    handlers = [h for h in logging.getLogger().handlers if type(h) is logging.StreamHandler]
    with bar:
        before = [(handler, handler.setStream(sys.stderr)) for handler in handlers]
        try:
            yield
        finally:
            for handler, stream in before:
                if stream is not None:  # None: it was this stream already
                    handler.setStream(stream)


@contextmanager
def training_display(steps: int) -> Iterator["Reporter | None"]:
    """A bar with rate and time left; None off a terminal, where the loop logs plain lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (  # what fits into 80 columns with every time in full
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, expand=True, redirect_stdout=sys.stdout.isatty())
    with _above_bar(bar):
        task = bar.add_task("training", total=steps, note="")

        def report(now: "Report") -> None:
            note = f"loss {now.loss:.3f} {now.steps_a_second:.1f} steps/s {now.note}"
            bar.update(task, completed=now.step, note=note)

        yield report


@contextmanager
def work_display() -> Iterator["WorkProgress"]:
    """Shows ``(label, done, total)`` of any long work."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _PlainLines(console)
        return
    # A bar that redirects stdout writes to the console's stderr: right only if both are one screen.
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), _Rate())
    bar = Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty())
    with _above_bar(bar):
        tasks: dict[str, TaskID] = {}

        def progress(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done, total=total)

        yield progress


class _Rate(ProgressColumn):
    """Pieces a second."""

    def render(self, task: Task) -> Text:
        """Empty until there is something to measure."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f}/s", style="progress.data.speed")


class _PlainLines:
    """A line at the end of each piece of work and every few seconds before."""

    def __init__(self, console: Console) -> None:
        self.console, self.last, self.began = console, time.monotonic(), time.monotonic()
        self.label, self.label_began, self.label_done = "", self.began, 0

    def __call__(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        if label != self.label:
            self.label, self.label_began, self.label_done = label, now, done
        if done < total and now - self.last < PLAIN_EVERY_S:
            return
        self.last = now
        line = f"{label}: {done}/{total} after {now - self.began:.0f} s"
        if self.label_done < done < total:  # rate and time left, since this work was first told of
            rate = (done - self.label_done) / max(now - self.label_began, 1e-9)
            line += f", {rate:.3g}/s, {(total - done) / rate:.0f} s left"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_findings(findings: Sequence["Finding"]) -> None:
    """The doctor's table on stdout."""
    table = Table("", "what", "found", box=None)
    styles = {True: "green", None: "dim", False: "bold red"}
    for finding in findings:
        table.add_row(MARKS[finding.ok], finding.name, finding.value, style=styles[finding.ok])
    Console(soft_wrap=True).print(table, markup=False)


def show_bench(report: "BenchReport") -> None:
    """The table of ``profforce bench`` on stdout, and what it was measured on."""
    from profforce.bench.report import filled

    (_, form, *figures), rows = filled(report)
    table = Table(form, box=None)
    for title in figures:
        table.add_column(title, justify="right")
    heading = ""
    for case, *shown in rows:
        if case != heading:
            heading = case
            table.add_row(case, style="cyan")
        table.add_row(*shown, style="bold" if shown[0].startswith("ours") else "")
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=PLAIN_WIDTH)
    console.print(table, markup=False)
    if derived := report.derived:
        first, *others = derived.columns
        second = Table(first, title=derived.title, title_justify="left", box=None)
        for title in others:
            second.add_column(title, justify="right")
        for line in derived.lines:
            second.add_row(*line)
        console.print("", second)
        if derived.advice:
            console.print(f"\n{derived.advice}\n", markup=False, highlight=False)
    facts = ", ".join(
        f"{key} {value}" for key, value in report.environment.items() if value is not None
    )
    console.print(facts, style="dim", markup=False, highlight=False)


def show_evaluation(report: "Measured") -> None:
    """The table of ``profforce evaluate`` on stdout: a column a run, then the differences."""
    from profforce.evaluation.report import table as filled

    (first, *runs), lines = filled(report, report.figures)
    count = len(report.material.requests)
    title = f"{count} {report.material.name}, free-running; means [95 % intervals]"
    table = Table(first, title=title, title_justify="left", box=None)
    for run in runs:
        table.add_column(run, justify="right")
    for line in lines:
        table.add_row(*map(Text, line))
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=max(PLAIN_WIDTH, 60 * len(runs)))
    console.print(table, markup=False)


def show_builds(builds: Sequence["Build"]) -> None:
    """The table of ``doctor --build`` on stdout."""
    table = Table("kernel", "made with", "arch", box=None)
    for title in ("registers", "spilled bytes", "shared bytes"):
        table.add_column(title, justify="right")
    for row in builds:
        made = " ".join(f"{key}={value}" for key, value in row.macros.items())
        figures = [row.registers, row.spill_bytes, row.shared_bytes]
        cells = [str(figure) for figure in figures] if row.error is None else ["FAILED", "", ""]
        style = "bold red" if row.error else "yellow" if row.spill_bytes else ""
        table.add_row(row.kernel, made, f"sm_{row.arch}", *cells, style=style)
    console = Console(soft_wrap=True)
    console.print(table, markup=False)
    failed = [row.error for row in builds if row.error]
    found = sum(row.cached for row in builds)
    console.print(
        f"{len(builds) - len(failed)} of {len(builds)} kernels ready, {found} of them from earlier"
    )
    for error in failed:
        console.print(error, style="red", markup=False, highlight=False)


def show_check(report: "CheckReport", *, show_all: bool) -> None:
    """What ``profforce data check`` found, on stdout: each kind and its places, then counts."""
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=PLAIN_WIDTH)
    styles = {"error": "bold red", "warning": "yellow", "note": "dim"}
    table = Table("", "kind", box=None)
    table.add_column("count", justify="right")
    table.add_column("what")
    for kind in report.findings.found():
        count, style = report.findings.counts[kind.code], styles[kind.severity]
        _say(console, f"{kind.severity} {kind.code} ({count}): {kind.what}", style)
        wanted = f"expected {kind.expected}; " if kind.expected else ""
        _say(console, f"  {wanted}{kind.remedy}")
        places = report.findings.places(kind.code)
        shown = places if show_all else places[:FIRST_PLACES]
        for place in shown:
            _say(console, "  " + _place(place))
        if count > len(shown):
            _say(console, f"  and {count - len(shown)} more", "dim")
        table.add_row(kind.severity, kind.code, str(count), kind.what, style=style)
    if table.row_count:
        console.print()
        console.print(table, markup=False)
        console.print()
    for line in _check_summary(report):
        _say(console, line)


def _say(console: Console, line: str, style: str = "") -> None:
    from profforce.data.check.kinds import printable

    console.print(printable(line), style=style, markup=False, highlight=False, soft_wrap=True)


def _place(place: "Place") -> str:
    parts = [place.where]
    parts += [f"got {place.got}"] if place.got else []
    parts += [f"expected {place.expected}"] if place.expected else []
    return "; ".join(parts)


def _check_summary(report: "CheckReport") -> list[str]:
    severities = ("error", "warning", "note")
    counts = {name: report.findings.count(name) for name in severities}
    found = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items())
    hours = "" if report.hours is None else f", {report.hours:.2f} hours"
    lines = [f"{report.root}: {report.num_utterances} utterances{hours}: {found}"]
    if report.mended is not None:
        done = "; ".join(f"{what}: {count}" for what, count in report.mended.done.items())
        lines.append(
            f"wrote {report.mended.num_lines} lines to {report.mended.path} ({done or 'no change'})"
        )
    if not report.is_usable:
        lines.append("training would refuse this corpus")
    return lines


def preparation_summary(report: "PrepareReport") -> str:
    """What ``profforce data prepare`` prints for people."""
    lines = [
        f"{report.kind} corpus in {report.root}: {report.num_train} utterances for training, "
        f"{report.num_valid} for validation, {report.minutes:.1f} minutes of speech"
    ]
    if report.speakers:
        lines.append(f"speakers: {', '.join(report.speakers)}")
    lines += [f"left out, {reason}: {count}" for reason, count in report.skipped.items()]
    lines += [
        f"outside the alphabet: {unknown.symbol!r} {unknown.count} times, first in {unknown.where}"
        for unknown in report.unknown_symbols
    ]
    return "\n".join(lines)
