"""Which library is used: prebuilt, cached, compiled now, or none."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profforce.errors import UserError
from profforce.kernels import build, cpu, native

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a cache, whose package was installed without a compiler."""
    source = tmp_path / "package" / build.SOURCE.name
    source.parent.mkdir()
    source.write_bytes(build.SOURCE.read_bytes())
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setattr(native.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.delenv(native.OVERRIDE, raising=False)
    native._choose.cache_clear()
    yield tmp_path  # type: ignore[misc]
    native._choose.cache_clear()


@needs_compiler
def test_compiled_once_and_found_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = native.load(build.BASELINE)
    assert found.path.is_relative_to(fresh / "cache")
    assert found.handle.pf_lanes() == 4
    monkeypatch.setattr(native, "compile_variant", lambda *_: pytest.fail("compiled twice"))
    assert native.load(build.BASELINE).path == found.path
    assert [p.name for p in found.path.parent.iterdir()] == [found.path.name], "nothing left aside"


@needs_compiler
def test_the_library_built_with_the_package_comes_first(fresh: Path) -> None:
    target = native.SOURCE.with_name(build.library_name(build.BASELINE))
    build.compile_variant(build.BASELINE, target)
    found = native.load(build.BASELINE)
    assert found.path == target
    assert "built with the package" in found.name


@needs_compiler
def test_a_stale_or_broken_library_is_not_used(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = native.SOURCE.with_name(build.library_name(build.BASELINE))
    monkeypatch.setattr(build, "source_key", lambda: "of-another-source")
    build.compile_variant(build.BASELINE, target)
    monkeypatch.undo()
    monkeypatch.setattr(native.platformdirs, "user_cache_dir", lambda name: str(fresh / "cache"))
    monkeypatch.setattr(native, "SOURCE", target.with_name(build.SOURCE.name))
    assert native.load(build.BASELINE).path != target
    cached = native.load(build.BASELINE).path
    cached.unlink()
    cached.write_bytes(b"not a library")
    assert native.load(build.BASELINE).handle.pf_lanes() == 4


def test_without_a_compiler_pytorch_takes_its_place_and_says_so_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert native.library() is None
        assert native.library() is None
    assert cpu.describe() == "chunked PyTorch (no C++ compiler found; install g++ or clang++)"
    assert [r.getMessage() for r in caplog.records] == [
        "linear attention on the CPU: chunked PyTorch, slower: "
        "no C++ compiler found; install g++ or clang++"
    ]


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for the compiler")
def test_a_failing_compiler_is_quoted(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fresh / "cxx"
    compiler.write_text(
        "#!/bin/sh\necho 'warning: old' >&2\necho 'x.cpp:3: error: no' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert native.library() is None
    assert native.why_not() == f"chunked PyTorch ({compiler} failed: x.cpp:3: error: no)"


@needs_compiler
@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind here")
def test_a_cache_that_cannot_be_written_is_named(fresh: Path) -> None:
    (fresh / "cache").mkdir(mode=0o500)
    assert native.library() is None
    assert "cannot be written" in native.why_not()


def test_an_unknown_override_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.OVERRIDE, "avx1024")
    with pytest.raises(UserError, match=r"no such CPU kernel.*avx1024"):
        native.library()


def test_instructions_that_the_processor_lacks_are_refused(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "best_variant", lambda: build.BASELINE)
    if build.AVX512 not in build.variants():
        pytest.skip("one variant only")
    monkeypatch.setenv(native.OVERRIDE, "avx512")
    with pytest.raises(UserError, match=r"lacks that CPU kernel.*expected baseline\|pytorch"):
        native.library()


def test_the_build_script_needs_nothing_but_the_standard_library() -> None:
    """setup.py loads it where neither the package nor torch is installed."""
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('b', {str(Path(build.__file__))!r})\n"
        "m = importlib.util.module_from_spec(spec); sys.modules['b'] = m\n"
        "spec.loader.exec_module(m)\n"
        "assert 'torch' not in sys.modules and m.variants()\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


@needs_compiler
def test_every_variant_compiles_without_a_warning(tmp_path: Path) -> None:
    for variant in build.variants():
        done = subprocess.run(
            [
                *(str(build.find_compiler()), *build.COMMON_FLAGS, *variant.flags),
                *("-Wall", "-Wextra", "-Wno-psabi", "-Werror", f"-DPF_LANES={variant.lanes}"),
                *("-fsyntax-only", str(build.SOURCE)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
