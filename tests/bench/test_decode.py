"""Suite ``decode``: every form takes the same step, and the errors would show it if one did not."""

import json
from pathlib import Path

import pytest
import torch

from profforce.app import main
from profforce.bench import decode
from profforce.bench.decode import SUITE, parse_shape
from profforce.config import BenchConfig, BenchDtype
from profforce.errors import UserError
from profforce.kernels import free_run

CPU = torch.device("cpu")
SMALL = {"B": 3, "T": 20, "D": 32, "H": 2, "L": 2}


TOLERANCE = {"engine_linear_bfloat16": 1e-2, "engine_linear_int8": 3e-2}
own = pytest.mark.parametrize("name", list(SUITE.groups(BenchConfig(suite="decode"), CPU)))


@own
def test_a_step_is_that_of_the_parallel_form(name: str) -> None:
    form = SUITE.forms([name], SMALL, BenchConfig(suite="decode"), CPU)[name]
    assert form.error is not None and form.error() < TOLERANCE.get(name, 1e-5)


@own
def test_the_same_step_is_taken_again_and_again(name: str) -> None:
    """The attention state of the linear forms goes on; its shapes, and so its cost, do not."""
    form = SUITE.forms([name], SMALL, BenchConfig(suite="decode"), CPU)[name]
    first = form.run().clone()
    again = form.run()
    assert first.shape == again.shape
    if "linear" not in name:
        torch.testing.assert_close(again, first)


def test_the_engine_takes_part_where_it_can_run() -> None:
    names = list(SUITE.groups(BenchConfig(suite="decode"), CPU))
    assert (names[:4] == list(decode.ENGINE)) == free_run.is_available()
    half = BenchConfig(suite="decode", dtype=BenchDtype.bfloat16)
    assert list(SUITE.groups(half, CPU)) == ["linear", "softmax", "prefix"]


def test_linear_and_prefix_are_one_function() -> None:
    made = SUITE.forms(["linear", "prefix"], SMALL, BenchConfig(suite="decode"), CPU)
    torch.testing.assert_close(made["linear"].run(), made["prefix"].run(), rtol=1e-4, atol=1e-5)


def test_a_wrong_step_shows_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode.LinearSelfAttention.step

    def wrong(self: object, x: torch.Tensor, state: object, t: int) -> object:
        y, state = right(self, x, state, t)  # type: ignore[arg-type]
        return y * 1.01, state

    monkeypatch.setattr(decode.LinearSelfAttention, "step", wrong)
    form = SUITE.forms(["linear"], SMALL, BenchConfig(suite="decode"), CPU)["linear"]
    assert form.error is not None and form.error() > 1e-4


def test_long_prefixes_are_neither_run_again_nor_checked() -> None:
    case = {**SMALL, "B": 1, "T": decode.RERUN_FRAMES + 1}
    made = SUITE.forms(["linear", "prefix"], case, BenchConfig(suite="decode"), CPU)
    assert list(made) == ["linear"] and made["linear"].error is None


def test_shapes() -> None:
    assert parse_shape("32x500") == {"B": 32, "T": 500, "D": 512, "H": 8, "L": 4}
    for text in ("32", "0x5", "1x2x3", "axb"):
        with pytest.raises(UserError, match="is no shape"):
            parse_shape(text)


@pytest.mark.slow
def test_the_command_gives_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["suite=decode", "shapes=[2x9]", "repeats=2", "threads=1", "memory=false"]
    assert main(["bench", *words, "--json", "d.json"]) == 0
    rows = json.loads(Path("d.json").read_text())["rows"]
    assert [row["form"] for row in rows][-3:] == ["linear", "softmax", "prefix"]
    assert all(row["suite"] == "decode" and row["ms_median"] > 0 for row in rows)
    assert all(row["error"] < TOLERANCE.get(row["form"], 1e-5) for row in rows)


@pytest.mark.slow
def test_the_peers_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fast_transformers")
    monkeypatch.chdir(tmp_path)
    words = ["suite=decode", "shapes=[2x9]", "repeats=2", "threads=1", "memory=false", "peers=true"]
    assert main(["bench", *words, "--json", "d.json"]) == 0
    forms = [row["form"] for row in json.loads(Path("d.json").read_text())["rows"]]
    assert forms[-2:] == ["fast_transformers_linear", "fast_transformers_full"]
