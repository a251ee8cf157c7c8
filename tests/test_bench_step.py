"""The step bench measures every case and says where; no figure is asserted."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

TOOL = Path(__file__).parents[1] / "tools/bench_step.py"
TINY = ["model.width=16", "model.feedforward_width=16", "model.num_heads=2", "trainer.batch_size=2"]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_step", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_case_is_measured(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        code = bench.main([*TINY, "--repeats", "3", "--frames", "12", "--device", "cpu"])
    finally:
        torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert set(result["ms"]) == {
        f"{attention}/{what}"
        for attention in ("linear", "softmax")
        for what in (
            "teacher_forcing_step",
            "professor_forcing_step",
            "professor_forcing_step_gate_shut",
            "mirror_step_b1",
            "mirror_step_b32",
            "mirror_step_b128",
        )
    }
    for row in result["ms"].values():
        assert 0 < row["min"] <= row["median"] <= row["max"]
    assert result["environment"]["torch"] == torch.__version__
    assert result["environment"]["device"] == "cpu"
    assert result["environment"]["repeats"] == 3


def test_a_free_run_starts_over_at_its_end(bench: ModuleType) -> None:
    from profforce.bridge import compose
    from profforce.config import TrainConfig

    config = compose(TrainConfig, "train", ["experiment=demo", *TINY, "model.reduction_factor=4"])
    step = bench.MirrorStep(config, bench.Sizes(8, 5), torch.device("cpu"), 2)
    seen = []
    for _ in range(4):
        step.prepare()
        seen.append(step.state.t)
        step()
    assert seen == [0, 1, 0, 1]


def test_a_mistaken_setting_is_one_line(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    try:
        assert bench.main(["model.widht=3", "--device", "cpu"]) == 2
    finally:
        torch.set_num_threads(threads)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and "model.widht" in captured.err
