"""An evaluation as JSON and as Markdown: the same bytes for the same figures."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from profforce.evaluation.evaluate import Evaluation, kinds_of
from profforce.evaluation.figures import (
    FIGURES,
    Figure,
    difference_over,
    mean_over,
    measured,
    with_interval,
)
from profforce.evaluation.material import Material
from profforce.evaluation.statistics import Estimate

RELATIVE = "real_time_factor"
"""The only figure that is never the same twice."""
MARKS = re.compile(r"[\\|`*]")
"""What Markdown would take for its own; it leaves underscores within words alone."""
MAX_TEXT = 60
"""Characters of a text in a table."""


@dataclass(frozen=True)
class Report:
    """Runs measured on the same texts, the one in question first."""

    material: Material
    evaluations: list[Evaluation]
    timing: bool
    """Files hold the real-time factor."""

    @property
    def figures(self) -> list[Figure]:
        """What was measured, for the terminal."""
        return measured([row for one in self.evaluations for row in one.rows])

    @property
    def kept(self) -> list[Figure]:
        """What goes into files."""
        return [figure for figure in self.figures if self.timing or figure.key != RELATIVE]


def table(report: Report, figures: Sequence[Figure]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines: a column a run, and one a run for its paired difference to the first."""
    first, *others = report.evaluations
    titles = ["", *(f"{one.run} {one.checkpoint}" for one in report.evaluations)]
    titles += [f"{one.run} minus {first.run}" for one in others]
    lines = []
    for figure in figures:
        key = figure.key
        cells = [with_interval(figure, mean_over(one.rows, key)) for one in report.evaluations]
        for one in others:
            difference = difference_over(one.rows, first.rows, key)
            cells.append(with_interval(figure, difference, "+") + _verdict(figure, difference))
        lines.append([figure.title, *cells])
    kinds = dict.fromkeys(kind for one in report.evaluations for kind in kinds_of(one.rows))
    for kind in kinds:
        counts = [kinds_of(one.rows).get(kind, 0) for one in report.evaluations]
        changes = [f"{count - counts[0]:+d}" for count in counts[1:]]
        lines.append([f"utterances with {kind}", *map(str, counts), *changes])
    return titles, lines


def to_json(report: Report) -> str:
    """``{"material", "figures", "runs": [{..., "summary", "faults", "rows"}], "differences"}``."""
    dropped = {figure.key for figure in FIGURES} - {figure.key for figure in report.kept}
    first, *others = report.evaluations
    found = {
        "material": report.material.name,
        "num_utterances": len(first.rows),
        "figures": {f.key: {"title": f.title, "better": f.better} for f in report.kept},
        "runs": [_run(report, one, dropped) for one in report.evaluations],
        "differences": [
            {
                "run": one.run,
                "baseline": first.run,
                "summary": {
                    f.key: _estimate(difference_over(one.rows, first.rows, f.key))
                    for f in report.kept
                },
            }
            for one in others
        ],
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def to_markdown(report: Report) -> str:
    """The table of means, and the utterances that failed."""
    titles, lines = table(report, report.kept)
    count = len(report.evaluations[0].rows)
    out = [f"{count} {report.material.name}, free-running; means with 95 % intervals.", ""]
    out += _table([titles, ["---", *["---:"] * (len(titles) - 1)], *lines])
    for one in report.evaluations:
        failed = [[_brief(row["text"]), details(row)] for row in one.rows if row["faults"]]
        if failed:
            out += ["", f"Faults of {_cell(one.run)}:", ""]
            out += _table([["text", "faults"], ["---", "---"], *failed])
    return "\n".join(out) + "\n"


def _verdict(figure: Figure, difference: Estimate) -> str:
    if not difference.clear or figure.key == RELATIVE:  # its utterances share one measurement
        return ""
    return " better" if (difference.mean < 0) == (figure.better == "lower") else " worse"


def _run(report: Report, one: Evaluation, dropped: set[str]) -> dict[str, Any]:
    return {
        "run": one.run,
        "checkpoint": one.checkpoint,
        "summary": {f.key: _estimate(mean_over(one.rows, f.key)) for f in report.kept},
        "faults": kinds_of(one.rows),
        "rows": [{k: v for k, v in row.items() if k not in dropped} for row in one.rows],
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {k: round(v, 6) if v == v else None for k, v in asdict(estimate).items()}


def details(row: dict[str, Any]) -> str:
    """The faults of an utterance in one line."""
    return "; ".join(f"{f['kind']} at {f['start_s']:.2f} s: {f['detail']}" for f in row["faults"])


def _brief(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _table(lines: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(map(_cell, line))} |" for line in lines]


def _cell(text: str) -> str:
    """``text`` so that it stays in its cell and is read as it is: ``<eos>`` would be a tag."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return MARKS.sub(r"\\\g<0>", text)
