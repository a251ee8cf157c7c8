"""tools/judge.py on made sounds, tools/plot_run.py on a run of a few steps."""

import json
from pathlib import Path
from types import ModuleType

import judge
import plot_run
import pytest
import torch
from tiny_run import trained

from profforce.audio.files import write_audio


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["method=adversarial", "method.start_step=1", "freerun.pool_size=4"]
    return trained(tmp_path_factory.mktemp("tools"), *words)


class Parrot:
    """Hears what the first sample's sign says: the right words or the wrong ones."""

    def __init__(self, num_threads: int) -> None:
        assert num_threads == 1

    def __call__(self, audio: torch.Tensor) -> str:
        return "Call 5-4-2." if audio.mean() > 0 else "call five"


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(judge, "Whisper", Parrot)
    lines = []
    for name, level in (("good", 0.5), ("bad", -0.5)):
        write_audio(tmp_path / f"{name}.wav", torch.full((4000,), level), 22050)
        lines += [json.dumps({"wav": f"{name}.wav", "text": "Call five four two."}), ""]
    lines.append(json.dumps({"wav": "good.wav", "text": "Call five."}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return tmp_path / "rows.jsonl"


def test_the_judge_scores_any_audio(rows: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = rows.with_name("heard.json")
    assert judge.main([str(rows), "--json", str(kept)]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["utterances"], result["scored"], result["words"]) == (3, 2, 8)
    assert (result["word_errors"], result["flawless"]) == (0.25, 1)
    heard = json.loads(kept.read_text())["rows"]
    assert [row.get("word_errors") for row in heard] == [0.0, 0.5, None]
    assert heard[1]["heard"] == "call five"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"wav": 1}', "rows.jsonl:1: not a row"),
        ("[", "rows.jsonl:1"),
        (None, "cannot read"),
        ('{"wav": "gone.wav", "text": "red sky over night"}', "gone.wav"),
    ],
    ids=["number", "broken", "missing", "no audio"],
)
def test_mistakes_with_the_judge_are_one_line(
    rows: Path, text: str | None, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows.unlink() if text is None else rows.write_text(text)
    assert judge.main([str(rows)]) == 1
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1


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
