"""tools/gpu_check --part free_run: its forms and rows, on the CPU and small."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from profforce.models import graph_machine


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools/gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_every_form_makes_the_same_frames_from_rows_that_end_apart(
    tool: ModuleType, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    replay = graph_machine.Machine.replay
    monkeypatch.setattr(
        graph_machine.Machine, "replay", lambda self, n: rows.append(n) or replay(self, n)
    )
    model = tool.free_running_model(torch.device("cpu"), attention, width=16)
    found = tool.free_run_rows(model, 12, 70, repeats=1)
    assert [row["form"].removeprefix(f"{attention}_") for row in found] == [
        *("plain", "graphs", "graphs_of_all_rows", "graphs_bfloat16")
    ]
    errors = [row["error"] for row in found]
    assert errors[0] == 0 and errors[1] < 1e-5 and errors[2] < 1e-5 and 1e-5 < errors[3] < 0.05
    assert set(rows) == {12, 2}, "the forms but one go on with those that run"
    assert all(row["ms_median"] > 0 and row["case"] == {"B": 12, "T": 70} for row in found)
    text = tool.table({"steps": [], "suites": {"free_run": {"rows": found}}})
    assert f"{attention}_graphs_bfloat16" in text


def test_what_is_not_a_number_is_far(tool: ModuleType) -> None:
    assert not tool.is_far({"form": "linear_graphs", "error": 1e-6})
    assert not tool.is_far({"form": "linear_graphs_bfloat16", "error": 0.1})
    assert tool.is_far({"form": "linear_graphs", "error": 0.1})
    assert tool.is_far({"form": "softmax_graphs_of_all_rows", "error": float("nan")})


def test_it_is_a_step_of_the_check(tool: ModuleType, tmp_path: Path) -> None:
    step = next(step for step in tool.plan(tmp_path, 32) if step.name == "free_run")
    assert step.command[-4:] == ["--batch", "32", "--part", "free_run"] and step.skip is None
    assert step.name in tool.PARTS
