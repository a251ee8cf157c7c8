"""Pictures show the figures of the rows, each suite in its own way."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from profforce.bench.epoch import EpochSuite
from profforce.bench.plot import PLOTS, plot
from profforce.bench.plot_bars import training_bars
from profforce.bench.plot_lines import PASSES, attention_lines, decode_lines, epoch_lines
from profforce.bench.report import Report, Row
from profforce.bench.suite import SUITES, Case
from profforce.config import TrainingBenchConfig

PLACE: dict[str, str | int | float | None] = {
    "device": "cpu",
    "cpu": "a processor",
    "threads": 1,
    "dtype": "float32",
    "torch": "2",
}


def row(suite: str, case: Case, form: str, ms: float, mib: float | None = None) -> Row:
    return Row(suite, case, form, ms, 0.1 * ms, mib, None)


def attention_report(memory: bool = True) -> Report:
    rows = [
        row("attention", {"B": 4, "T": t, "L": 1, "H": 2, "D": 8}, f"{kind}_{passes}", t * n, mib)
        for t in (64, 256)
        for n, kind in ((1, "linear"), (2, "softmax"), (3, "fast_transformers_linear"))
        for passes in ("batch_fwd", "batch_fwdbwd", "recurrent")
        for mib in [t / 2 if memory else None]
    ]
    return Report(PLACE, rows)


def decode_report() -> Report:
    cases = [(1, 500), (32, 500), (128, 500), (1, 100), (1, 20000)]
    rows = [
        row("decode", {"B": b, "T": t, "L": 4}, form, float(b + t))
        for b, t in cases
        for form in ("linear", "softmax", "prefix", "new_form")
        if form != "prefix" or b == 1
    ]
    return Report(PLACE, rows)


def train_report(memory: bool = True) -> Report:
    forms = {"teacher_forcing": 100.0, "professor_forcing": 181.0, "through_time": 950.0}
    rows = [
        row("train", {"B": 8, "T": t, "S": 4}, form, ms, ms / 10 if memory else None)
        for t in (168, 672)
        for form, ms in forms.items()
    ]
    return Report({**PLACE, "training": "experiment=demo"}, rows)


def epoch_report() -> Report:
    times = {"teacher_forcing": 100.0, "professor_forcing": 180.0}
    times |= {f"generate_{size}": 60 + size / 2 for size in (16, 64, 256)}
    rows = [row("epoch", {"B": 8, "T": 168, "S": 40}, form, ms) for form, ms in times.items()]
    return Report(PLACE, rows, EpochSuite().derive(rows, TrainingBenchConfig(suite="epoch")))


def drawn(draw: Any, report: Report) -> Any:
    figure = Figure()
    draw(figure, report)
    return figure


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_every_suite_has_a_picture(suite: str, tmp_path: Path) -> None:
    assert suite in PLOTS
    reports = {
        "attention": attention_report(),
        "decode": decode_report(),
        "train": train_report(),
        "epoch": epoch_report(),
        "kernel": Report(PLACE, [row("kernel", {"B": 1}, "ours_fwd", 3.0)]),
    }
    plot(reports[suite], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_another_suite_gets_bars(tmp_path: Path) -> None:
    plot(Report(PLACE, [row("mine", {"B": 1}, "a", 1.0)]), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 0


def test_attention_is_drawn_against_the_frames() -> None:
    panels = drawn(attention_lines, attention_report()).axes
    assert [panel.get_title() for panel in panels] == [*PASSES.values(), "", "", ""]
    lines = {line.get_label(): line for line in panels[0].lines}
    assert list(lines) == ["linear", "softmax", "fast_transformers_linear"]
    assert lines["softmax"].get_xydata().tolist() == [[64, 32], [256, 128]], "ms an utterance"
    assert lines["linear"].get_color() == lines["fast_transformers_linear"].get_color()
    assert lines["fast_transformers_linear"].get_linestyle() == "--"
    assert panels[3].lines[0].get_xydata().tolist() == [[64, 8], [256, 32]], "MiB an utterance"
    assert len(drawn(attention_lines, attention_report(memory=False)).axes) == 3


def test_decode_is_drawn_against_frames_and_batch() -> None:
    frames, batch = drawn(decode_lines, decode_report()).axes
    assert (frames.get_xlabel(), frames.get_title()) == ("frames so far", "B=1 L=4")
    assert (batch.get_ylabel(), batch.get_title()) == ("ms a frame", "T=500 L=4")
    line = frames.lines[0].get_xydata().tolist()
    assert line == [[100, 101], [500, 501], [20000, 20001]]
    assert batch.lines[0].get_xydata()[1].tolist() == [32, pytest.approx(532 / 32)]
    assert {line.get_label() for line in frames.lines} >= {"linear", "prefix", "new_form"}


def test_decode_of_one_case_is_drawn_too() -> None:
    report = Report(PLACE, [row("decode", {"B": 2, "T": 9}, "linear", 5.0)])
    (panel,) = drawn(decode_lines, report).axes
    assert panel.lines[0].get_xydata().tolist() == [[9, 5]]


def test_a_step_of_training_is_told_with_its_ratio() -> None:
    panels = drawn(training_bars, train_report()).axes
    assert len(panels) == 4
    times, memory = panels[0], panels[1]
    assert [t.get_text() for t in times.texts] == ["100  (1.00×)", "181  (1.81×)", "950  (9.50×)"]
    assert memory.texts[2].get_text() == "95  (9.50×)"
    assert len(drawn(training_bars, train_report(memory=False)).axes) == 2


def test_the_recommendation_is_marked() -> None:
    report = epoch_report()
    assert report.derived is not None
    best = report.derived.data["recommended"]
    (panel,) = drawn(epoch_lines, report).axes
    stars = [line for line in panel.lines if line.get_marker() == "*"]
    assert stars[0].get_xydata().tolist() == [[best["every"], best["ratio"]]]
    assert any(f"freerun.every={best['every']}" in text.get_text() for text in panel.texts)
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["G = 16", "G = 64", "G = 256"]
    full = next(line for line in panel.lines if line.get_label() == "G = 64")
    assert max(full.get_xdata()) == 4, "64 samples last for 4 steps of 16"
