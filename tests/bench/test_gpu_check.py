"""tools/gpu_check: what it does with steps, time and machines; the GPU's own work needs a GPU."""

import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools/gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def with_gpu(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "no_gpu", lambda: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_so_and_exits_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "tools/gpu_check.sh", "--json", tmp_path / "x.json"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "there is no CUDA device here" in done.stderr
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    "words", [["--minutes", "0"], ["--minutes", "x"], ["--batch", "0"], ["--part", "none"], ["x"]]
)
def test_mistaken_arguments_exit_2(tool: ModuleType, words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main(words)
    assert caught.value.code == 2


def test_every_step_runs_and_one_failure_is_exit_1(
    tool: ModuleType,
    with_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail = "import sys; print('on the way'); print('the reason', file=sys.stderr); sys.exit(3)"
    step = tool.Step
    steps = [
        step("build", python(fail), 30),
        step("tests", python("print('x'); print('12 passed')"), 30),
        step("memcheck", [], 30, "it is not installed"),
    ]
    monkeypatch.setattr(tool, "plan", lambda folder, batch: steps)
    target = tmp_path / "new/x.json"
    assert tool.main(["--json", str(target)]) == 1
    build, tests, memcheck = json.loads(target.read_text())["steps"]
    assert build["state"] == "failed"
    assert "exit code 3" in build["detail"] and "the reason" in build["detail"]
    assert (tests["state"], tests["detail"]) == ("ok", "12 passed")
    assert (memcheck["state"], memcheck["detail"]) == ("skipped", "it is not installed")
    captured = capsys.readouterr()
    assert "12 passed" in captured.out and "the reason" in captured.err
    monkeypatch.setattr(tool, "plan", lambda folder, batch: steps[1:])
    assert tool.main([]) == 0


def test_a_step_that_hangs_leaves_time_for_the_others(tool: ModuleType) -> None:
    step = tool.Step
    sleep = python("import time; time.sleep(60)")
    first, second, third = tool.run_steps(
        [step("a", sleep, 1), step("b", python("print(1)"), 30), step("c", sleep, 60)], 6
    )
    assert (first.state, first.detail) == ("failed", "it ran past 1 s")
    assert second.state == "ok"
    assert third.state == "failed" and third.seconds < 6
    assert tool.run_steps([step("a", sleep, 1)], 0)[0].detail == "there was no time left for it"


def test_the_plan_says_what_is_absent(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    skipped = {step.name: step.skip for step in tool.plan(tmp_path, None)}
    assert skipped["build"] is None and skipped["times"] is None
    assert skipped["memcheck"] == "compute-sanitizer is not installed"
    assert skipped["peers"] == "flash-linear-attention is not installed"
    monkeypatch.setattr("shutil.which", lambda name: f"/x/{name}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    steps = tool.plan(tmp_path, 16)
    assert not any(step.skip for step in steps)
    races = next(step for step in steps if step.name == "racecheck")
    assert races.command[:3] == ["/x/compute-sanitizer", "--tool", "racecheck"]
    assert steps[0].command[-4:] == ["--batch", "16", "--part", "build"]


def test_the_suites_run_as_commands_into_one_result(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profforce.bench.suite import SUITES
    from profforce.bench.suite import find_suite as find
    from profforce.commands.bench import _bench_settings

    monkeypatch.setattr(tool, "stack_batch", lambda: 100)
    assert {"kernel", *tool.SUITES} == set(SUITES)
    steps = {step.name: step.command for step in tool.plan(tmp_path, None)}
    for name in tool.SUITES:
        words = [word for word in steps[name][4:] if "=" in word]
        settings = _bench_settings(words)
        assert settings.suite == name and settings.device == "cuda" and settings.peers
        cases = find(name).cases(settings)
        assert name != "attention" or [case["B"] for case in cases] == [8, 100]
    small = next(step for step in tool.plan(tmp_path, 2) if step.name == "attention")
    assert "shapes=[2x2000x4x8x512]" in small.command
    row = {"case": {"B": 2}, "form": "linear", "ms_median": 5.0, "peak_mib": 7.0}
    best = {"overrides": "freerun.every=9", "ratio": 1.5}
    for name in ("train", "epoch"):
        made = {"rows": [row]} | ({"recommended": best} if name == "epoch" else {})
        (tmp_path / f"suite-{name}.json").write_text(json.dumps(made))
    found = tool.collect(tmp_path)
    assert list(found) == ["suites"] and set(found["suites"]) == {"train", "epoch"}
    text = tool.table({"steps": [], **found})
    assert "suite epoch:" in text and "5.000 ms         7 MiB" in text
    assert "recommended: freerun.every=9 (1.50 x)" in text


def test_the_steps_fit_into_eight_minutes(tool: ModuleType) -> None:
    assert 60 * tool.MINUTES < 8 * 60


def test_the_floor_counts_every_tensor_once(tool: ModuleType) -> None:
    case = {"B": 128, "H": 8, "T": 2000, "K": 64}
    tensor = 128 * 8 * 2000 * 64
    assert tool.floor_bytes("ours_fwd", case, 2) == 4 * 2 * tensor
    assert tool.floor_bytes("fla_fwdbwd", case, 4) == 11 * 4 * tensor
    assert tool.floor_bytes("ours_step", case, 4) == 1024 * (2 * 4 * 64 * 65 + 4 * 4 * 64)
    assert tool.floor_bytes("sdpa_fwd", case, 2) is None


def test_the_batch_shrinks_to_what_fits(tool: ModuleType) -> None:
    assert tool.fitting_batch(140 * 2**30) == 128
    assert tool.fitting_batch(8 * 2**30) == 104
    assert tool.fitting_batch(1) == 1
    assert tool.fitting_batch(8 * 2**30, tensors=160) == 13


def test_rows_and_table_come_from_the_kernel_suite(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profforce.config import BenchConfig

    config = BenchConfig(shapes=["1x2x20x8"], device="cpu", repeats=1, memory=False)
    rows = [tool._with_floor(row, "float32", 1e9) for row in tool.attention_rows(config)]
    ours = next(row for row in rows if row["form"] == "ours_fwd")
    assert ours["floor_ms"] == pytest.approx(1e3 * 4 * 4 * 2 * 20 * 8 / 1e9)
    place = {"device": "chip", "torch": "2", "copy_gb_s": 3000.0}
    tool._leave(Namespace(folder=tmp_path), "times", {"environment": place, "rows": rows})
    tool._leave(Namespace(folder=tmp_path), "peers", {"peer_rows": rows[:1]})
    text = tool.table({"steps": [], **tool.collect(tmp_path)})
    assert "ours_fwdbwd" in text and "3000 GB/s" in text and "in turn with flash" in text


def test_a_step_updates_its_own_state(tool: ModuleType) -> None:
    q, k, v = (torch.ones(2, tool.HEADS, tool.WIDTH) for _ in range(3))
    forms = tool.step_forms(q, k, v, peers=False)
    assert set(forms) == {"ours_step"}
    first = forms["ours_step"]()
    v *= 3  # the mean of the values so far: 1, then (1 + 3) / 2
    second = forms["ours_step"]()
    torch.testing.assert_close((first, second), (torch.ones_like(v), torch.full_like(v, 2.0)))
