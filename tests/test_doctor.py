"""The environment report, where something is missing too."""

import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import profforce.kernels
from profforce.app import main
from profforce.doctor import Finding, examine
from profforce.kernels import nvrtc

needs_nvrtc = pytest.mark.skipif(nvrtc.why_unavailable() is not None, reason="needs NVRTC")
TOY = """
extern "C" __global__ void toy(float* x) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[0] * FACTOR;
}
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Two instances of a toy kernel in place of the product's."""
    (tmp_path / "causal_linear.cu").write_text(TOY)
    made = [
        SimpleNamespace(name="toy", macros={"FACTOR": n}, shared_bytes=1024, block=32)
        for n in (2, 3)
    ]
    fake = ModuleType("profforce.kernels.cuda")
    fake.__file__ = str(tmp_path / "cuda.py")
    fake.instances = lambda arch: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "profforce.kernels.cuda", fake)
    monkeypatch.setattr(profforce.kernels, "cuda", fake, raising=False)
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path / "cache")
    return made


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


def test_a_missing_package_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "safetensors":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr("profforce.doctor.version", version)
    assert main(["doctor", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["safetensors"]["ok"] is False
    assert rows["torch"]["ok"] is True
    assert main(["doctor"]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_a_checkout_that_is_not_installed_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("profforce.doctor.version", version)
    assert examine()[0].name == "profforce"


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    folder = next(finding for finding in examine() if finding.name == "folder")
    assert folder.ok is False
    assert "Permission denied" in folder.value
    assert str(Path.cwd()) in folder.value


def test_what_is_optional_and_absent_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    findings = {finding.name: finding for finding in examine()}
    assert findings["espeak-ng"].ok is None
    assert findings["extra hifigan"].ok is None
    assert "pip install 'profforce[hifigan]'" in findings["extra hifigan"].value


@needs_nvrtc
def test_kernels_are_built_ahead(
    toys: list[SimpleNamespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--build", "--arch", "80,sm_90", "--json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [(row["kernel"], row["macros"], row["arch"]) for row in rows] == [
        ("toy", {"FACTOR": factor}, arch) for arch in ("80", "90") for factor in (2, 3)
    ]
    for row in rows:
        assert row["registers"] > 0 and row["spill_bytes"] == 0 and row["error"] is None
        assert 1024 <= row["shared_bytes"] <= 2048 and not row["cached"]
    assert "compiling for sm_80, sm_90: 4/4" in captured.err
    assert main(["doctor", "--build", "--arch", "80"]) == 0
    table = capsys.readouterr().out
    assert "FACTOR=3" in table and "sm_80" in table
    assert "2 of 2 kernels ready, 2 of them from earlier" in table


@needs_nvrtc
def test_a_kernel_that_fails_is_told_and_exits_1(
    toys: list[SimpleNamespace], capsys: pytest.CaptureFixture[str]
) -> None:
    toys[1].macros = {"FACTOR": "nothing"}
    assert main(["doctor", "--build", "--arch", "80", "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good["error"] is None and good["registers"] > 0
    assert 'identifier "nothing" is undefined' in bad["error"] and bad["registers"] is None
    assert main(["doctor", "--build", "--arch", "80"]) == 1
    table = capsys.readouterr().out
    assert "FAILED" in table and "1 of 2 kernels ready" in table and "is undefined" in table


@needs_nvrtc
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--build", "--arch", "8O"], "no architecture '8o'"),
        (["--build", "--arch", "910"], "did you mean '90'"),
        (["--build"], "name one: --arch 80,90"),
        (["--arch", "80"], "use --build --arch 80"),
    ],
)
def test_a_mistaken_architecture_is_one_line(
    toys: list[SimpleNamespace],
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert main(["doctor", *words]) == 2
    assert said in one_error(capsys)


def test_building_without_cuda_core_is_one_line(
    toys: list[SimpleNamespace],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    assert main(["doctor", "--build", "--arch", "80"]) == 2
    assert "pip install 'cuda-core" in one_error(capsys)


def found(name: str) -> Finding:
    return next(finding for finding in examine() if finding.name == name)


def test_the_kernels_in_use_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from profforce.kernels import ops

    assert found("linear attention on cpu").value == ops.describe("cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: f"chip {index}")
    monkeypatch.setattr(ops, "describe", lambda device: f"kernel of {device}")
    assert found("linear attention on cuda:1").value == "kernel of cuda:1"


def test_a_kernel_that_cannot_even_be_named_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str) -> str:
        raise RuntimeError("no\nway")

    monkeypatch.setattr("profforce.kernels.ops.describe", fail)
    finding = found("linear attention on cpu")
    assert finding.ok is False and finding.value == "RuntimeError: no way"


def test_no_nvrtc_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    assert found("nvrtc").ok is None
    assert "pip install 'cuda-core" in found("nvrtc").value
