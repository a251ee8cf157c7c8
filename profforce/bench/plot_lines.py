"""Lines: how time and memory grow with the sizes, and what N and G cost an epoch."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from profforce.bench.report import Report, Row, case_name, number
from profforce.bench.suite import Case

LINEAR, SOFTMAX, PREFIX = "#1b6ca8", "#e07a1f", "#7a7a7a"
COLOURS = {
    "linear": LINEAR,
    "softmax": SOFTMAX,
    "full": SOFTMAX,
    "prefix": PREFIX,
    "engine_linear": "#0b2f4f",
    "engine_softmax": "#8f3d06",
}
"""By a form's name; a peer has the colour of the same attention and a broken line."""
OTHER_COLOURS = ("#2a9d63", "#8e5bb5", "#d1495b", "#b59410", "#46a3b8")
ADVICE = "#d1495b"
PEER = "fast_transformers"
PASSES = {
    "_batch_fwd": "batch, forward",
    "_batch_fwdbwd": "batch, forward and backward",
    "_recurrent": "recurrent, T steps",
}

Value = Callable[[Row], float | None]


def attention_lines(figure: Any, report: Report) -> None:
    """Time and memory an utterance against T, a column for each way to run the stack."""
    values: dict[str, Value] = {"ms an utterance": lambda row: row.ms_median / row.case["B"]}
    if any(row.peak_mib for row in report.rows):
        values["MiB an utterance"] = lambda row: row.peak_mib and row.peak_mib / row.case["B"]
    figure.set_size_inches(11, 0.8 + 3 * len(values))
    panels = figure.subplots(len(values), len(PASSES), sharex=True, sharey="row", squeeze=False)
    for line, (title, value) in zip(panels, values.items(), strict=True):
        for panel, (passes, named) in zip(line, PASSES.items(), strict=True):
            rows = [row for row in report.rows if row.form.endswith(passes)]
            _lines(panel, rows, "T", value, _without(passes))
            if panel in panels[0]:
                panel.set_title(named, fontsize=9)
        line[0].set_ylabel(title, fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("T, frames", fontsize=9)
    _legend(figure, panels[0, 0])


def decode_lines(figure: Any, report: Report) -> None:
    """A step against the frames before it, and its share for each utterance against the batch."""
    axes = {
        "T": ("frames so far", "ms a step", lambda row: row.ms_median),
        "B": ("B, utterances at once", "ms a frame", lambda row: row.ms_median / row.case["B"]),
    }
    shown = [(size, rows) for size in axes if (rows := _longest_series(report.rows, size))]
    if not shown:  # a single case: its points alone
        shown = [("T", [row for row in report.rows if row.case == report.rows[0].case])]
    figure.set_size_inches(0.8 + 4.6 * len(shown), 4)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, (size, rows) in zip(panels, shown, strict=True):
        along, up, value = axes[size]
        _lines(panel, rows, size, value, str)
        panel.set_xlabel(along, fontsize=9)
        panel.set_ylabel(up, fontsize=9)
        fixed = {name: n for name, n in rows[0].case.items() if name != size}
        panel.set_title(case_name(fixed), fontsize=9)
    _legend(figure, panels[0])


def epoch_lines(figure: Any, report: Report) -> None:
    """Cost against N, a line a G: full where no sample is used too often; the advice as a star."""
    assert report.derived is not None
    data = report.derived.data
    best, limits = data["recommended"], data["limits"]
    figure.set_size_inches(8, 5)
    panel = figure.subplots()
    sizes = sorted({pair["pool_size"] for pair in data["grid"]})
    for size, colour in zip(sizes, _shades(len(sizes)), strict=True):
        pairs = [pair for pair in data["grid"] if pair["pool_size"] == size]
        fresh = [pair for pair in pairs if pair["uses"] <= limits["max_uses"]]
        used = [
            pair for pair in pairs if pair["uses"] >= max((p["uses"] for p in fresh), default=0)
        ]
        panel.plot(*_points(used), ":", color=colour, linewidth=1.2)
        panel.plot(*_points(fresh), "o-", color=colour, markersize=4, label=f"G = {size}")
    without = limits["without_generating"]
    budget = without / (1 - limits["budget"])
    _levels(panel, {"without generating": without, f"generating {limits['budget']:.0%}": budget})
    panel.plot(best["every"], best["ratio"], "*", color=ADVICE, markersize=15, zorder=5)
    panel.annotate(
        f"{best['overrides'].replace(' ', chr(10))}\n{best['ratio']:.2f}×, each sample used "
        f"{number(best['uses'])}×,\n{best['mean_staleness']:g} steps stale on average",
        (best["every"], best["ratio"]),
        xytext=(0.66, 0.42),
        textcoords="axes fraction",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},
        arrowprops={"arrowstyle": "-", "color": ADVICE, "shrinkB": 8},
    )
    room = max(4 * (budget - without), 1.6 * (best["ratio"] - without))
    panel.set_ylim(without - 0.12 * room, without + room)  # where N and G are worth a thought
    panel.set_xscale("log", base=2)
    _plain_ticks(panel.xaxis)
    panel.set_xlabel("N, steps between refreshes (mean staleness is half of it)", fontsize=9)
    panel.set_ylabel("time of a step, teacher forcing = 1", fontsize=9)
    title = f"full line: each sample used at most {limits['max_uses']:g}×"
    panel.legend(fontsize=8, frameon=False, title=title, title_fontsize=8, loc="upper right")
    panel.spines[["top", "right"]].set_visible(False)


def _levels(panel: Any, levels: dict[str, float]) -> None:
    """Horizontal lines, named at their right end."""
    for name, height in levels.items():
        panel.axhline(height, color="0.6", linewidth=1, linestyle="--")
        panel.annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(4, -3),
            textcoords="offset points",
            fontsize=7,
            color="0.4",
        )


def _without(ending: str) -> Callable[[str], str]:
    return lambda form: form.removesuffix(ending)


def _lines(
    panel: Any, rows: Sequence[Row], size: str, value: Value, label: Callable[[str], str]
) -> None:
    """A line a form (and a set of its other sizes) against ``size``, both axes logarithmic."""
    colours = cycle(OTHER_COLOURS)
    for (form, others), points in _series(rows, size).items():
        shown = [(row.case[size], y) for row in points if (y := value(row))]
        if not shown:
            continue
        name = label(form)
        panel.plot(
            *zip(*shown, strict=True),
            "o--" if name.startswith(PEER) else "o-",
            color=_colour(name) or next(colours),
            alpha=0.6 if name.startswith(PEER) else 1.0,
            markersize=4,
            label=" ".join(filter(None, [name, others])),
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(sorted({row.case[size] for row in rows}))
    _plain_ticks(panel.xaxis)
    _plain_ticks(panel.yaxis)
    panel.tick_params(labelsize=8)
    panel.grid(axis="y", color="0.92")
    panel.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, panel: Any) -> None:
    """One for all panels, below them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)


def _series(rows: Sequence[Row], size: str) -> dict[tuple[str, str], list[Row]]:
    """Rows of one form that differ in ``size`` alone, by the form and the other sizes."""
    others = [{k: v for k, v in row.case.items() if k != size} for row in rows]
    varied = {k for case in others for k in case if len({o.get(k) for o in others}) > 1}
    found: dict[tuple[str, str], list[Row]] = {}
    for row, case in zip(rows, others, strict=True):
        name = case_name({k: v for k, v in case.items() if k in varied})
        found.setdefault((row.form, name), []).append(row)
    return {key: sorted(group, key=lambda row: row.case[size]) for key, group in found.items()}


def _longest_series(rows: Sequence[Row], size: str) -> list[Row]:
    """The rows of the most cases that differ in ``size`` alone; none if that is one case."""

    def rest(case: Case) -> str:
        return case_name({k: v for k, v in case.items() if k != size})

    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(rest(row.case), []).append(row)
    best = max(groups.values(), key=lambda group: len({row.case[size] for row in group}))
    return best if len({row.case[size] for row in best}) > 1 else []


def _colour(form: str) -> str | None:
    return COLOURS.get(form.removeprefix(f"{PEER}_"))


def _points(pairs: Sequence[dict[str, Any]]) -> tuple[list[int], list[float]]:
    return [pair["every"] for pair in pairs], [pair["ratio"] for pair in pairs]


def _shades(count: int) -> Iterator[Any]:
    """Colours from light to dark."""
    from matplotlib import colormaps

    ramp = colormaps["viridis_r"]
    return (ramp(0.15 + 0.8 * i / max(count - 1, 1)) for i in range(count))


def _plain_ticks(axis: Any) -> None:
    """Numbers without exponents."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())
