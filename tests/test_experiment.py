"""tools/experiment.py: equal starts, equal time, kept results, and figures that can be checked."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import experiment
import experiment_check
import experiment_job
import experiment_report
import numpy as np
import pytest
import torch
from tiny_run import trained

from profforce.bridge import compose
from profforce.config import CrossAttentionKind, FreerunConfig, PositionsKind, TrainConfig
from profforce.errors import UserError
from profforce.models.checkpoint import find_checkpoint, load_train_state
from profforce.training.logs import Report

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / "tools"

RECIPES = {
    "start": ["data=synthetic"],
    "common": ["method.ramp_steps=1", "freerun.every=10", "freerun.pool_size=4"],
    "recipes": [
        {"name": "teacher", "overrides": ["method.name=teacher_forcing"]},
        {
            "name": "conv",
            "overrides": ["method.name=professor_forcing", "discriminator.kind=conv"],
        },
    ],
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["method=teacher_forcing", "trainer.steps=6"]
    run = trained(tmp_path_factory.mktemp("experiment"), *words, num_utterances=16)
    return find_checkpoint(run, "last")


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    path = tmp_path / "recipes.json"
    path.write_text(json.dumps(RECIPES))
    return path


def job_of(start: Path, folder: Path, *overrides: str, **settings: Any) -> experiment_job.Job:
    where = {"run_dir": str(folder / "run"), "result": str(folder / "result.json")}
    given = {"recipe": "one", "seed": 1, "seconds": 0.5, "num_texts": 2, **settings}
    return experiment_job.Job(overrides=overrides, start=str(start), **where, **given)


@pytest.mark.slow
def test_recipes_are_compared_and_what_is_done_is_kept(
    start: Path, recipes: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--recipes", str(recipes), "--start", str(start.parent.parent), "--out", str(out)]
    words += ["--minutes", "0.01", "--texts", "2", "--seeds", "0", "--only", "conv"]
    assert experiment.main(words) == 0
    summary = json.loads((out / "results.json").read_text())
    assert list(summary["recipes"]) == ["start", "conv"]
    assert summary["baseline"] == "conv" and summary["settings"]["start"] == str(start)
    assert summary["recipes"]["start"]["steps"] == 0 < summary["recipes"]["conv"]["steps"]
    assert 0.6 <= summary["recipes"]["conv"]["used_s"] < 10
    for recipe in summary["recipes"].values():
        assert set(recipe["exams"]) == {"in_length", "longer", "seen"}
    assert "difference to conv" in (out / "results.md").read_text()
    assert (out / "results.png").stat().st_size > 1000
    before = {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    assert len(before) == 2
    capfd.readouterr()
    assert experiment.main(words) == 0
    assert "2 of 2 jobs are done" in capfd.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()} == before
    result = out / "jobs" / "conv-seed0.json"
    found = json.loads(result.read_text())
    result.write_text(json.dumps(found | {"rows": found["rows"][:1]}))
    assert experiment.main([*words, "--again"]) == 0
    assert json.loads(result.read_text()) == found
    assert [path.name for path in (out / "runs").iterdir()] == ["conv-seed0"]
    assert experiment.main([*words, "--start-only"]) == 0
    assert "1 of 1 jobs are done" in capfd.readouterr().err
    older = {key: value for key, value in found.items() if key not in ("min_words", "readings")}
    result.write_text(json.dumps(older))
    assert experiment.main(words) == 0
    assert "2 of 2 jobs are done" in capfd.readouterr().err
    assert experiment.main([*words, "--readings", "2"]) == 1
    assert "readings 1" in capfd.readouterr().err
    assert experiment.main([*words, "--texts", "3"]) == 1
    assert "another --out" in capfd.readouterr().err


def test_every_recipe_begins_where_the_start_stands(start: Path, tmp_path: Path) -> None:
    job = job_of(start, tmp_path, "discriminator.kind=conv", "method.name=professor_forcing")
    config = experiment_job.settings_for(job)
    assert (config.seed, config.method.start_step) == (1, 6)
    corpus = experiment_job.load_corpus(config.data, config.text, config.mel)
    assert experiment_job.begin(config, corpus, start, tmp_path / "run") == 6
    device = torch.device("cpu")
    made = load_train_state(find_checkpoint(tmp_path / "run", "last"), device)
    saved = load_train_state(start, device)
    for part in ("model", "average"):
        assert saved[part].keys() == made[part].keys()
        for name, value in saved[part].items():
            assert torch.equal(value, made[part][name]), name
    old, new = (list(s["optimizer"]["state"].values()) for s in (saved, made))
    assert all(torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in zip(old, new, strict=True))
    assert (made["step"], made["batches_drawn"]) == (saved["step"], saved["batches_drawn"])
    assert made["gate_accuracy"] == 0.5 and made["pool"]["samples"]["mels"] == []


def test_the_seed_changes_the_discriminator_and_not_the_model(start: Path, tmp_path: Path) -> None:
    states = []
    for seed in (1, 2):
        job = job_of(start, tmp_path / str(seed), seed=seed)
        config = experiment_job.settings_for(job)
        corpus = experiment_job.load_corpus(config.data, config.text, config.mel)
        experiment_job.begin(config, corpus, start, tmp_path / str(seed))
        found = find_checkpoint(tmp_path / str(seed), "last")
        states.append(load_train_state(found, torch.device("cpu")))
    same = {
        part: all(torch.equal(states[0][part][n], x) for n, x in states[1][part].items())
        for part in ("model", "discriminator")
    }
    assert same == {"model": True, "discriminator": False}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model.width=8", "cannot change"),
        ("trainer.steps=5", "cannot change"),
        ("data.root=x", "cannot change"),
        ("method.nme=through_time", "nme"),
        ("method.weight=-1", "method.weight must be >= 0"),
    ],
)
def test_a_recipe_is_refused_by_name(start: Path, tmp_path: Path, word: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        experiment_job.settings_for(job_of(start, tmp_path, word))
    assert "recipe one" in str(error.value)


def test_the_learning_rate_stays_where_the_recipe_puts_it(start: Path, tmp_path: Path) -> None:
    job = job_of(start, tmp_path, "trainer.lr=1e-4", "trainer.min_lr=1e-4", seconds=0.2)
    experiment_job.run(job)
    rows = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {round(row["loss/learning_rate"], 9) for row in rows} == {1e-4}
    assert not any("gap/free_running_dtw" in row for row in rows), "evaluation is not in the time"


def test_the_budget_asks_for_the_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, raised = [100.0], []
    monkeypatch.setitem(experiment_job.CLOCKS, "cpu", lambda: now[0])
    monkeypatch.setattr(experiment_job.signal, "raise_signal", raised.append)
    budget = experiment_job.Budget(5.0, "cpu")
    for seconds in (1.0, 4.9, 5.1, 6.0):
        now[0] = 100 + seconds
        report = Report(step=int(seconds), steps=9, epoch=0, loss=0, steps_a_second=1, eta_s=0)
        budget(report)
        assert budget.spent == bool(raised) == (seconds >= 5)
    assert len(raised) == 1 and budget.steps == 6


def test_somebody_elses_signal_leaves_no_result(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **settings: object) -> float:
        raise SystemExit(130)

    monkeypatch.setattr(experiment_job, "train", stopped)
    with pytest.raises(SystemExit):
        experiment_job.run(job_of(start, tmp_path))
    assert not (tmp_path / "result.json").exists()


def result(recipe: str, seed: int, failed: list[float], steps: int = 5) -> dict[str, Any]:
    rows = [{"exam": "in_length", "failed": value} for value in failed]
    return {"recipe": recipe, "seed": seed, "steps": steps, "used_s": 1.0, "rows": rows}


def test_differences_are_those_of_the_seeds_that_both_have() -> None:
    results = [
        result("start", 0, [1, 1, 1, 1], steps=0),
        result("first", 0, [1, 1, 0, 0]),
        result("second", 0, [0, 0, 0, 0]),
        result("second", 1, [1, 1, 1, 1]),
    ]
    summary = experiment_report.summary_of(results)
    assert summary["baseline"] == "first"
    second = summary["recipes"]["second"]["exams"]["in_length"]["failed"]
    assert second["mean"]["mean"] == 0.5 and second["difference"]["mean"] == -0.5
    assert "difference" not in summary["recipes"]["first"]["exams"]["in_length"]["failed"]
    table = experiment_report.table_of(summary)
    assert "| second | 2 | 5 | 50.00 [" in table and "| second | 2 | 5 | -50.00 [" in table
    alone = experiment_report.table_of(experiment_report.summary_of(results[:1]))
    assert "| start | 1 | 0 | 100.00 [" in alone and "difference" not in alone
    values = experiment_report.values_of(results, "second", [0, 1], "in_length", "failed")
    assert np.array_equal(values, [[0] * 4, [1] * 4])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot read"),
        ("{}", "KeyError"),
        ('{"start": [], "common": [], "recipes": []}', "names of their own"),
        (
            '{"start": [], "common": ["x"], "recipes": [{"name": "a", "overrides": []}]}',
            "KEY=VALUE",
        ),
        ('{"start": [], "common": [3], "recipes": []}', "KEY=VALUE"),
        ('{"start": [], "common": [], "recipes": {}}', "recipes are a list"),
        ('{"start": [], "common": [], "recipes": [], "lik": "x"}', "no such key; got lik;"),
        ('{"start": [], "common": [], "recipes": [{"name": 1, "overrides": []}]}', "are texts"),
        ('{"like": 3}', "are texts"),
        ('{"like": "gone.json"}', "gone.json: cannot read"),
        ('{"like": "recipes.json"}', "build on each other; got recipes.json -> recipes.json"),
    ],
)
def test_recipes_that_cannot_be_read_are_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        experiment.read_recipes(path)


def builders(**bases: str | None) -> str:
    """A file of recipes, each with one override, that build on others by name."""
    recipes = [
        {"name": name, "overrides": [f"{name}=1"], **({"like": base} if base else {})}
        for name, base in bases.items()
    ]
    return json.dumps({"start": ["s=1"], "common": ["c=1"], "recipes": recipes})


def test_recipes_and_files_come_after_what_they_are_like(tmp_path: Path) -> None:
    base, path = tmp_path / "base.json", tmp_path / "recipes.json"
    base.write_text(builders(last="middle", first=None, middle="first"))
    assert experiment.read_recipes(base) == {
        "start": ["s=1"],
        "common": ["c=1"],
        "recipes": [
            {"name": "last", "overrides": ["first=1", "middle=1", "last=1"]},
            {"name": "first", "overrides": ["first=1"]},
            {"name": "middle", "overrides": ["first=1", "middle=1"]},
        ],
    }
    more = [{"name": "more", "like": "last", "overrides": ["first=2"]}]
    path.write_text(json.dumps({"like": "base.json", "start": ["s=2"], "recipes": more}))
    plan = experiment.read_recipes(path)
    assert (plan["start"], plan["common"]) == (["s=1", "s=2"], ["c=1"])
    assert [recipe["name"] for recipe in plan["recipes"]] == ["last", "first", "middle", "more"]
    assert plan["recipes"][-1]["overrides"] == ["first=1", "middle=1", "last=1", "first=2"]


@pytest.mark.parametrize(
    ("bases", "said"),
    [
        ({"one": "two", "two": "one"}, "build on each other; got one -> two -> one"),
        ({"one": "one"}, "build on each other; got one -> one"),
        ({"one": None, "two": "onne"}, "'two' is like 'onne', which is none; did you mean 'one'"),
    ],
    ids=["circle", "itself", "unknown"],
)
def test_recipes_that_build_on_nothing_are_named(
    tmp_path: Path, bases: dict[str, str | None], said: str
) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(builders(**bases))
    with pytest.raises(UserError, match=said):
        experiment.read_recipes(path)


def test_the_first_bed_is_the_present_one_with_attention_by_content() -> None:
    first, present = (
        experiment.read_recipes(TOOLS / "recipes" / name)
        for name in ("synthetic_content.json", "synthetic.json")
    )
    assert (first["recipes"], first["common"]) == (present["recipes"], present["common"])
    settings = [compose(TrainConfig, "train", plan["start"]) for plan in (first, present)]
    assert settings[0].model.cross_attention is CrossAttentionKind.content
    assert settings[0].model.positions is PositionsKind.absolute
    places = ("cross_attention", "positions")
    model = replace(settings[1].model, **{key: getattr(settings[0].model, key) for key in places})
    assert replace(settings[1], model=model) == settings[0]


@pytest.mark.parametrize("path", sorted((TOOLS / "recipes").glob("*.json")), ids=lambda p: p.stem)
def test_the_recipes_that_come_along_are_sound(
    path: Path, start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert experiment.main(["--recipes", str(path), "--words"]) == 0
    compose(TrainConfig, "train", capfd.readouterr().out.split())
    plan = experiment.read_recipes(path)
    for recipe in plan["recipes"]:
        words = (*plan["common"], *recipe["overrides"])
        experiment_job.settings_for(job_of(start, tmp_path, *words))


@pytest.mark.parametrize("path", sorted((TOOLS / "recipes").glob("*.json")), ids=lambda p: p.stem)
def test_professor_forcing_is_plain_whatever_the_start_is_set_to(path: Path) -> None:
    plan = experiment.read_recipes(path)
    words = {recipe["name"]: recipe["overrides"] for recipe in plan["recipes"]}
    plain, joined, intensive = (
        compose(TrainConfig, "train", [*plan["start"], *plan["common"], *words[name]])
        for name in ("professor_forcing", "joined", "intensive")
    )
    assert plain.freerun == FreerunConfig(every=25, pool_size=64)
    assert plain.method.imitation_weight == 1
    assert joined.freerun == replace(plain.freerun, splice=0.25, join=0.25)
    assert intensive.freerun == FreerunConfig(every=10, pool_size=80, batch_size=8, splice=0.5)
    assert intensive.method.imitation_weight == 4


def test_planted_faults_are_counted_and_truth_is_not(
    start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert experiment_check.main(["--num", "6", "--vocoded", "1"]) == 0
    table = capfd.readouterr().out
    assert table.count("| 0 of ") == 6, "no false alarm, in three forms of letters and utterances"
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith(("| 2", "| one"))]
    assert len(rows) == 3 and all(not cell.startswith("0 of") for row in rows for cell in row)
    assert experiment_check.main(["--wavs", str(tmp_path)]) == 1
    assert "no recordings" in capfd.readouterr().err


def test_precision_and_recall_are_counted_by_letter() -> None:
    edits = experiment_check.edits_between
    pairs = [
        (edits("abc", "ac"), edits("abc", "ac")),
        (edits("abc", "ac"), edits("abc", "abcd")),
        (edits("abcd", "ad"), edits("abcd", "acd")),
    ]
    assert experiment_check.precision_and_recall(pairs) == "2 of 3 | 2 of 4 | 1 of 3"


def test_a_job_that_fails_is_named_and_its_run_put_aside(
    start: Path,
    recipes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(experiment.subprocess, "call", lambda *_, **__: 3)
    out = tmp_path / "out"
    (out / "runs" / "teacher-seed0").mkdir(parents=True)
    words = ["--recipes", str(recipes), "--start", str(start), "--out", str(out)]
    assert experiment.main(words) == 1
    said = capfd.readouterr().err
    assert said.count("FAILED (3)") == 3 and str(out / "logs" / "conv-seed0.log") in said
    assert (out / "runs" / "teacher-seed0.unfinished1").is_dir()
    assert not (out / "runs" / "teacher-seed0").exists()
    assert json.loads((out / "logs" / "conv-seed0.job.json").read_text())["seconds"] == 600


def test_only_what_there_is_is_drawn() -> None:
    speech = {"failed": 1, "skipped_s": 1, "made_up_s": 1, "mcd_gap_db": 1}
    assert experiment_report.plotted_of(speech) == ["failed", "skipped_s", "mcd_gap_db"]
    assert experiment_report.plotted_of({**speech, "error_rate": 1}) == [
        "failed",
        "error_rate",
        "mcd_gap_db",
    ]
    assert experiment_report.plotted_of({"failed": 1}) == ["failed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --start"),
        (["--start", "nowhere"], "no such run folder"),
        (["--start", "here", "--minutes", "0"], "above 0"),
        (["--start", "here", "--only", "techer"], "no such recipe"),
    ],
    ids=["none", "nowhere", "minutes", "only"],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    start: Path,
    recipes: Path,
    tmp_path: Path,
    words: list[str],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = [str(start) if word == "here" else word for word in words]
    out = ["--recipes", str(recipes), "--out", str(tmp_path / "out")]
    assert experiment.main([*out, *given]) == 1
    error = capfd.readouterr().err
    assert said in error and error.count("\n") == 1
