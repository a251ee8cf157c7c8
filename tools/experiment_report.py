"""Figures of tools/experiment.py: means with intervals, differences by pairs, table and picture.

N seeds, U utterances.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profforce.audio.pictures import save_figure
from profforce.evaluation.statistics import Estimate, Values, difference_of, mean_of

Result = Mapping[str, Any]
MEASURES = {
    "failed": ("failed", 100, "%"),
    "error_rate": ("wrong letters", 100, "%"),
    "deletion_rate": ("deleted", 100, "%"),
    "repetition_rate": ("repeated", 100, "%"),
    "insertion_rate": ("inserted", 100, "%"),
    "substitution_rate": ("substituted", 100, "%"),
    "early": ("early stops", 100, "%"),
    "late": ("late stops", 100, "%"),
    "skipped_s": ("skipped", 1, "s"),
    "made_up_s": ("made up", 1, "s"),
    "stop_error_frames": ("stop error", 1, "frames"),
    "mcd_free_db": ("MCD free", 1, "dB"),
    "mcd_forced_db": ("MCD forced", 1, "dB"),
    "mcd_gap_db": ("gap", 1, "dB"),
    "mcd_other_db": ("MCD forced, another reading", 1, "dB"),
    "mcd_excess_db": ("excess gap", 1, "dB"),
    "error_rate_forced": ("wrong letters, forced", 100, "%"),
}
"""Of a row: its heading, what to multiply it by, and the unit then."""
PLOTTED = ("failed", ("error_rate", "skipped_s"), "mcd_gap_db")
"""Measures of a panel each; of several the first that there is."""


def summary_of(results: Sequence[Result]) -> dict[str, Any]:
    """Estimates of every recipe and exam, and of its differences to the first trained recipe.

    Recipes keep the order of ``results``; only seeds that both have are paired.
    """
    recipes = list(dict.fromkeys(str(result["recipe"]) for result in results))
    trained = [name for name in recipes if any(r["steps"] for r in results if r["recipe"] == name)]
    baseline = trained[0] if trained else recipes[0]
    exams = list(dict.fromkeys(row["exam"] for result in results for row in result["rows"]))
    return {
        "baseline": baseline,
        "recipes": {
            name: {
                "seeds": _seeds(results, name),
                "steps": float(np.mean([r["steps"] for r in results if r["recipe"] == name])),
                "used_s": float(np.mean([r["used_s"] for r in results if r["recipe"] == name])),
                "exams": {exam: _figures(results, name, baseline, exam) for exam in exams},
            }
            for name in recipes
        },
    }


def table_of(summary: Mapping[str, Any]) -> str:
    """Markdown: for each exam the figures, and the differences to the baseline."""
    blocks = []
    for exam in next(iter(summary["recipes"].values()))["exams"]:
        blocks.append(f"### {exam.replace('_', ' ')}\n\n{_table(summary, exam, 'mean')}")
        if len(summary["recipes"]) == 1:  # the start alone, which differs from nothing
            continue
        title = f"### {exam.replace('_', ' ')}: difference to {summary['baseline']}"
        blocks.append(f"{title}\n\n{_table(summary, exam, 'difference')}")
    note = "In brackets 95 % bootstrap intervals over seeds and utterances; * does not hold 0."
    return "\n\n".join([*blocks, note]) + "\n"


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """A panel for each exam and plotted measure: every recipe's mean with its interval."""
    recipes = summary["recipes"]
    exams = next(iter(recipes.values()))["exams"]
    plotted = plotted_of(next(iter(exams.values())))
    figure = Figure(figsize=(4 * len(plotted), 0.4 + 2.6 * len(exams)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(exams), len(plotted), squeeze=False, sharey=True)
    for row, exam in zip(panels, exams, strict=True):
        for axes, measure in zip(row, plotted, strict=True):
            heading, scale, unit = MEASURES[measure]
            for place, name in enumerate(recipes):
                found = recipes[name]["exams"][exam].get(measure)
                if found is not None:
                    mean, low, high = (
                        scale * found["mean"][key] for key in ("mean", "low", "high")
                    )
                    axes.plot([low, high], [place, place], color="tab:blue")
                    axes.plot(mean, place, "o", color="tab:blue")
            axes.set_yticks(range(len(recipes)), list(recipes))
            axes.set_ylim(len(recipes) - 0.5, -0.5)
            axes.set_xlabel(f"{heading} ({unit})")
            axes.set_title(exam.replace("_", " "), fontsize=9)
            axes.grid(axis="x", alpha=0.3)
    save_figure(figure, path)


def plotted_of(known: Mapping[str, Any]) -> list[str]:
    """The measures to draw, of those that are known of an exam."""
    wanted = [(one,) if isinstance(one, str) else one for one in PLOTTED]
    return [found[0] for each in wanted if (found := [name for name in each if name in known])]


def values_of(
    results: Sequence[Result], recipe: str, seeds: Sequence[int], exam: str, name: str
) -> Values:
    """``[N, U]`` of one measure; empty where no row has it."""
    rows = {r["seed"]: r["rows"] for r in results if r["recipe"] == recipe}
    table = [[row.get(name) for row in rows[seed] if row["exam"] == exam] for seed in seeds]
    return np.array([] if any(None in line for line in table) else table, dtype=np.float64)


def _figures(results: Sequence[Result], recipe: str, baseline: str, exam: str) -> dict[str, Any]:
    own = _seeds(results, recipe)
    shared = [seed for seed in own if seed in _seeds(results, baseline)]
    figures: dict[str, Any] = {}
    for measure in MEASURES:
        values = values_of(results, recipe, own, exam, measure)
        if not values.size:
            continue
        figures[measure] = {"mean": asdict(mean_of(values))}
        if recipe != baseline and shared:
            pair = [values_of(results, name, shared, exam, measure) for name in (recipe, baseline)]
            figures[measure]["difference"] = asdict(difference_of(pair[0], pair[1]))
    return figures


def _seeds(results: Sequence[Result], recipe: str) -> list[int]:
    return sorted(result["seed"] for result in results if result["recipe"] == recipe)


def _table(summary: Mapping[str, Any], exam: str, part: str) -> str:
    recipes = summary["recipes"]
    present = [m for m in MEASURES if any(m in r["exams"][exam] for r in recipes.values())]
    headings = [f"{MEASURES[m][0]}, {MEASURES[m][2]}" for m in present]
    lines = [
        "| recipe | seeds | steps | " + " | ".join(headings) + " |",
        "|---|" + "---:|" * (2 + len(present)),
    ]
    for name, recipe in recipes.items():
        figures = recipe["exams"][exam]
        if part == "difference" and not any(part in one for one in figures.values()):
            continue
        cells = [_cell(figures.get(m, {}).get(part), MEASURES[m][1], part) for m in present]
        lines.append(
            f"| {name} | {len(recipe['seeds'])} | {recipe['steps']:.0f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _cell(found: Mapping[str, float] | None, scale: float, part: str) -> str:
    if found is None:
        return ""
    estimate = Estimate(**found)
    sign = "+" if part == "difference" else ""
    mean, low, high = (scale * x for x in (estimate.mean, estimate.low, estimate.high))
    star = "*" if part == "difference" and estimate.clear else ""
    return f"{mean:{sign}.2f}{star} [{low:{sign}.2f}, {high:{sign}.2f}]"
