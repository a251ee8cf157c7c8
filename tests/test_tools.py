"""tools/held_out.py and tools/plot_run.py on a run of a few steps."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from profforce.app import main

pytest.importorskip("jiwer")
TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
try:
    import held_out
    import plot_run
finally:
    sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tools")
    corpus = [f"data.root={root / 'corpus'}", "data.num_utterances=24", "data.valid_fraction=0.3"]
    assert main(["data", "prepare", "synthetic", *corpus]) == 0
    words = ["model=tiny", "data=synthetic", *corpus, "trainer.steps=4", "trainer.warmup_steps=2"]
    words += ["trainer.batch_size=4", "method.start_step=1", "freerun.pool_size=4"]
    assert main(["train", *words, f"hydra.run.dir={root / 'run'}"]) == 0
    return root / "run"


class Parrot:
    """Hears what stands in the texts of recordings, and nothing in what the model says."""

    def __init__(self, num_threads: int = 1) -> None:
        self.calls = 0

    def __call__(self, audio: torch.Tensor) -> str:
        self.calls += 1
        return "ba" if audio.numel() else ""


@pytest.mark.slow
def test_held_out_scores_four_forms_of_the_same_utterances(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(held_out, "Transcriber", Parrot)
    out, result = tmp_path / "out", tmp_path / "scores.json"
    words = ["--run", str(run), "--num", "2", "--out", str(out), "--json", str(result)]
    assert held_out.main(words) == 0
    scores = json.loads(result.read_text())
    assert list(scores["forms"]) == ["recorded", "vocoded", "teacher_forced", "free_running"]
    texts = {tuple(row["text"] for row in form["rows"]) for form in scores["forms"].values()}
    assert len(texts) == 1 and len(next(iter(texts))) == 2
    for form in ("vocoded", "teacher_forced", "free_running"):
        assert [p.name for p in sorted((out / form).iterdir())] == ["000.wav", "001.wav"]
    assert (out / "000.png").stat().st_size > 1000
    assert scores["gap"]["gap/free_running_dtw"] > 0
    brief = json.loads(capfd.readouterr().out)
    assert brief["forms"]["recorded"]["rows"] is None


def test_held_out_names_what_is_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--run", str(tmp_path), "--out", str(tmp_path), "--json", str(tmp_path / "j")]
    assert held_out.main(words) == 1
    assert "no run of profforce train" in capfd.readouterr().err


def curves(module: ModuleType, run: Path, picture: Path) -> list[list[int]]:
    """Number of points in every curve that is drawn."""
    drawn: list[list[int]] = []
    save = module.save_figure

    def keep(figure: object, path: Path) -> None:
        axes = figure.axes  # type: ignore[attr-defined]
        drawn.extend([len(line.get_xdata()) for line in ax.lines] for ax in axes)
        save(figure, path)

    module.save_figure = keep  # type: ignore[attr-defined]
    try:
        assert module.main([str(run), str(picture)]) == 0
    finally:
        module.save_figure = save  # type: ignore[attr-defined]
    return drawn


@pytest.mark.slow
def test_plot_run_draws_every_curve_of_the_run(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    drawn = curves(plot_run, run, picture)
    assert picture.stat().st_size > 1000
    assert [len(panel) for panel in drawn] == [3, 3, 3, 3], "two curves and where it begins"
    assert all(count > 0 for panel in drawn for count in panel), drawn


def test_plot_run_says_what_it_wants(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert plot_run.main([str(tmp_path), str(tmp_path / "p.png")]) == 1
    assert "metrics.jsonl" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        plot_run.main([])
