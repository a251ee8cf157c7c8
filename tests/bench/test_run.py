"""The kernel suite from the command line, at tiny sizes; no figure of time is asserted."""

import csv
import importlib.util
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from profforce.app import main
from profforce.bench import kernel, machine, peak
from profforce.bench.peers import usable_peers
from profforce.bench.run import run_suite
from profforce.bench.suite import SUITES, find_suite
from profforce.commands.bench import _bench_settings
from profforce.commands.shared import _complete_bench
from profforce.config import BenchConfig, BenchDtype
from profforce.errors import UserError

FORMS = [
    "gemm_1024",
    *[f"{name}_{part}" for name in ("ours", "chunked", "sdpa") for part in ("fwd", "fwdbwd")],
]
TINY = ["shapes=[1x2x37x8,2x1x130x16]", "repeats=2", "threads=1", "device=cpu"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def silent(label: str, done: int, total: int) -> None:
    pass


def config(**settings: object) -> BenchConfig:
    made = {"shapes": ["1x2x37x8"], "repeats": 1, "memory": False, "device": "cpu"}
    return BenchConfig(**{**made, **settings})  # type: ignore[arg-type]


def test_json_has_environment_and_rows_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "suite=kernel", *TINY, "--json", "-"]) == 0
    captured = capfd.readouterr()
    result = json.loads(captured.out)
    assert list(result) == ["environment", "rows"]
    assert [row["form"] for row in result["rows"]] == FORMS * 2
    assert result["rows"][0]["case"] == {"B": 1, "H": 2, "T": 37, "K": 8}
    assert result["rows"][-1]["case"] == {"B": 2, "H": 1, "T": 130, "K": 16}
    for row in result["rows"]:
        assert list(row) == [
            "suite", "case", "form", "ms_median", "ms_iqr", "peak_mib", "error",
        ]  # fmt: skip
        assert row["suite"] == "kernel"
        assert row["ms_median"] > 0 and row["ms_iqr"] >= 0
        assert 0 < row["error"] < 2e-6
        assert (row["peak_mib"] is not None) == peak.can_measure()
    told = result["environment"]
    assert told["torch"] == torch.__version__ and told["threads"] == 1
    assert told["device"] == "cpu" and told["kernel"] and told["dtype"] == "float32"
    assert "timing B=1 H=2 T=37 K=8: 21/21" in captured.err


def test_every_other_output(in_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--csv", "t.csv", "--markdown", "t.md", "--plot", "t.png", "--json", "t.json"]
    assert main(["bench", *TINY, "memory=false", *words]) == 0
    table = capfd.readouterr().out
    assert "B=1 H=2 T=37 K=8" in table and "ours_fwdbwd" in table and "GFLOP/s" in table
    rows = json.loads((in_tmp / "t.json").read_text())["rows"]
    lines = list(csv.DictReader(io.StringIO((in_tmp / "t.csv").read_text())))
    assert [line["form"] for line in lines] == FORMS * 2
    assert [float(line["ms_median"]) for line in lines] == [row["ms_median"] for row in rows]
    assert (lines[0]["T"], lines[0]["peak_mib"]) == ("37", "")
    assert float(lines[0]["share_of_gemm"]) == 1
    markdown = (in_tmp / "t.md").read_text().splitlines()
    assert len({line.count("|") for line in markdown[:16]}) == 1 and markdown[1].startswith("| ---")
    assert (in_tmp / "t.png").read_bytes()[:4] == b"\x89PNG"


def test_the_share_of_the_machines_speed_follows_from_the_times() -> None:
    report = run_suite(config(check=False), silent)
    rows = {row.form: row for row in report.rows}
    ours, gemm = rows["ours_fwdbwd"], rows["gemm_1024"]
    work = 12 * 1 * 2 * 37 * 8**2
    expected = (work / ours.ms_median) / (2 * 1024**3 / gemm.ms_median)
    assert report.share(ours) == pytest.approx(expected)
    assert kernel.flops("sdpa_fwdbwd", ours.case) == 7 * 1 * 2 * 37**2 * 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["suite=kernl"], "did you mean 'kernel'"),
        (["shapes=[8x4x500]"], "'8x4x500' is no shape; expected BxHxTxK"),
        (["shapes=[8-4-500-32]"], "did you mean '8x4x500x32'"),
        (["shapes=[8x4x0x32]"], "is no shape"),
        (["shapes=8x4x500x32"], "shapes: got a single value, expected a list"),
        (["shape=[8x4x500x32]"], "did you mean 'shapes'"),
        (["repeets=3"], "did you mean 'repeats'"),
        (["repeats=0"], "bench.repeats must be >= 1, got 0"),
        (["dtype=float8"], "expected one of [float32, bfloat16, float16]"),
        (["device=tpu"], "device is not available"),
        (["--json", "-", "--csv", "-"], "only one of --json, --markdown and --csv"),
        (["--json", "nowhere/x.json"], "cannot be written"),
        (["--plot", "x.bmp"], "expected a name in .png"),
        (["hydra.run.dir=x"], "hydra.* belongs to profforce train"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    assert main(["bench", *words]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured.err
    assert said in captured.err
    assert list(in_tmp.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_what_was_measured_is_shown_where_its_file_cannot_be_written(
    capfd: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    assert main(["bench", *TINY, "memory=false", "--json", "/dev/full"]) == 2
    captured = capfd.readouterr()
    assert "ours_fwdbwd" in captured.out
    assert "/dev/full: cannot write the file (No space left on device)" in captured.err


def wrong_value(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return kernel.ours(q, k, v) * 1.001


def wrong_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return kernel.ours(q.detach() * 0.001 + q - 0.001 * q, k, v)


def not_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return kernel.ours(q.flip(1), k.flip(1), v.flip(1)).flip(1)


@pytest.mark.parametrize(
    ("form", "in_output", "in_gradients"),
    [(wrong_value, 1e-3, 1e-3), (wrong_gradient, 0.0, 1e-3), (not_causal, 0.1, 0.1)],
)
def test_a_wrong_form_shows_in_its_error(
    form: Callable[..., Tensor],
    in_output: float,
    in_gradients: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(kernel.FORMS, "ours", form)
    errors = {row.form: row.error or 0.0 for row in run_suite(config(), silent).rows}
    assert errors["ours_fwd"] >= 0.9 * in_output and errors["ours_fwdbwd"] >= 0.9 * in_gradients
    assert errors["chunked_fwdbwd"] < 2e-6
    if not in_output:
        assert errors["ours_fwd"] < 2e-6


def test_only_the_first_utterances_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "CHECKED_UTTERANCES", 2)
    monkeypatch.setitem(
        kernel.FORMS, "ours", lambda q, k, v: torch.cat([kernel.ours(q, k, v)[:2], v[2:]])
    )
    rows = run_suite(config(shapes=["3x2x9x8"]), silent).rows
    assert all((row.error or 0.0) < 2e-6 for row in rows)


def test_half_types_are_told_from_float32_by_their_error() -> None:
    rows = run_suite(config(dtype=BenchDtype.bfloat16), silent).rows
    errors = {row.form: row.error or 0.0 for row in rows}
    assert 1e-4 < errors["ours_fwd"] < 2e-2 and errors["gemm_1024"] < 1e-5


def test_the_environment_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = ["begun with"]
    monkeypatch.setattr(machine, "git_commit", lambda folder: commit[0])

    def change(label: str, done: int, total: int) -> None:
        commit[0] = "changed"

    report = run_suite(config(check=False), change)
    assert commit == ["changed"] and report.environment["git_commit"] == "begun with"


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    report = run_suite(config(threads=before + 1, check=False), silent)
    assert report.environment["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_peers_that_cannot_take_part_are_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = importlib.util.find_spec
    absent = {"fast_transformers"}
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name in absent else name in ("fla", "triton") or real(name),
    )
    forms = {row.form for row in run_suite(config(peers=True, check=False), silent).rows}
    assert forms == set(FORMS)
    assert "fast_transformers is left out: it is not installed; pip install" in caplog.text
    assert "fla is left out: it does not run on cpu" in caplog.text
    assert usable_peers("float32", torch.device("cuda")) == ["fla"]
    absent = {"fast_transformers.causal_product.causal_product_cpu"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in absent else name)
    assert usable_peers("bfloat16", torch.device("cpu")) == []
    assert "fast_transformers is left out: it has no bfloat16" in caplog.text
    assert usable_peers("float32", torch.device("cpu")) == []
    assert "fast_transformers is left out: it was built without cpu" in caplog.text


@pytest.mark.skipif(
    machine._version("pytorch-fast-transformers") is None, reason="needs fast_transformers"
)
def test_fast_transformers_computes_the_same() -> None:
    rows = run_suite(config(peers=True), silent).rows
    errors = {row.form: row.error for row in rows if row.form.startswith("fast_")}
    assert set(errors) == {"fast_transformers_fwd", "fast_transformers_fwdbwd"}
    assert all(error is not None and error < 1e-5 for error in errors.values())


def test_the_commit_is_told_with_changes_marked(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    assert machine.git_commit(package) is None
    (package / "file").write_text("a")
    name = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    machine._git(tmp_path, "init", "-q")
    machine._git(tmp_path, "add", ".")
    machine._git(tmp_path, *name, "commit", "-qm", "m")
    clean = machine.git_commit(package)
    assert clean is not None and len(clean) == 12
    (package / "file").write_text("b")
    assert machine.git_commit(package) == f"{clean}+"


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys, profforce.app as a; assert a.main(['bench', '--help']) == 0;"
        "assert a.main(['doctor', '--help']) == 0;"
        "print([m for m in ('torch', 'hydra', 'numpy', 'cuda.core') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "shapes=[8x4x500x32]" in done.stdout and "--plot" in done.stdout


def test_settings_are_completed() -> None:
    ctx = SimpleNamespace(params={"overrides": []})
    assert _complete_bench(ctx, "repe") == ["repeats="]  # type: ignore[arg-type]


def test_the_commands_in_the_documentation_are_right() -> None:
    text = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
    lines = [line.split("#")[0] for line in text.splitlines() if line.startswith("    profforce b")]
    suites = set()
    for line in lines:
        words = [word for word in shlex.split(line)[2:] if "=" in word]
        settings = _bench_settings(words)
        suites.add(settings.suite)
        if not getattr(settings, "from_corpus", False):  # that corpus may not be here
            assert find_suite(settings.suite).cases(settings)
    assert suites == set(SUITES)


def test_only_the_forms_that_are_named() -> None:
    settings = BenchConfig(forms=["ours_fwd"], shapes=["1x2x9x8"], repeats=1, memory=False)
    assert [row.form for row in run_suite(settings, silent).rows] == ["ours_fwd"]
    settings = BenchConfig(forms=["our_fwd"], shapes=["1x2x9x8"], repeats=1, memory=False)
    with pytest.raises(UserError, match="no form 'our_fwd' here; did you mean 'ours_fwd'"):
        run_suite(settings, silent)
    part = [*TINY[1:], "suite=train", "shapes=[2x20x5]", "model=tiny", "forms=[teacher_forcing]"]
    report = run_suite(_bench_settings([*part, "memory=false"]), silent)
    assert [row.form for row in report.rows] == ["teacher_forcing"] and report.derived is None
