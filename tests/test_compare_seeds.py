"""Seeds of two methods, compared by their reports."""

import json
from pathlib import Path

import compare_seeds
import pytest


def report(path: Path, errors: list[float | None], forced: float = 0.25) -> str:
    rows = [
        {"text": f"text {k}", "failed": 0.0}
        | ({} if x is None else {"word_errors": x, "word_errors_forced": forced})
        for k, x in enumerate(errors)
    ]
    path.write_text(json.dumps({"runs": [{"rows": rows}]}))
    return str(path)


def test_figures_are_paired_by_seed_and_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [report(tmp_path / f"a{k}", [0.5, 0.7, None]) for k in range(2)]
    other = [report(tmp_path / f"b{k}", [0.25, 0.45, None], forced=0.5) for k in range(2)]
    out = tmp_path / "out.json"
    words = ["--base", *base, "--other", *other, "--json", str(out)]
    assert compare_seeds.main(words) == 0
    found = json.loads(out.read_text())
    assert found["word_errors"]["base"]["mean"] == pytest.approx(0.6)
    assert found["word_errors"]["difference"] == pytest.approx(
        {"mean": -0.25, "low": -0.25, "high": -0.25}  # the same in every pair: no doubt
    )
    assert found["word_errors_gap"]["base"]["mean"] == pytest.approx(0.35)
    assert found["word_errors_gap"]["difference"]["mean"] == pytest.approx(-0.5)
    assert "mcd_free_db" not in found and "character_errors" not in found
    assert "| word_errors | 0.600 [0.500, 0.700] |" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = report(tmp_path / "a", [0.5]), report(tmp_path / "b", [0.5, 0.5])
    (tmp_path / "c").write_text("[]")
    cases = ([one, two], [one, str(tmp_path / "c")], [one, str(tmp_path / "none")])
    for base, other in cases:
        assert compare_seeds.main(["--base", base, "--other", other]) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1
    assert compare_seeds.main(["--base", one, one, "--other", one]) == 1
