"""Peak memory is what a call really had, whoever allocated it."""

import os
import subprocess
import sys
import textwrap

import pytest

from profforce.bench import peak
from profforce.bench.peak import peaks_on_cpu
from profforce.config import BenchConfig

needs_linux = pytest.mark.skipif(not peak.can_measure(), reason="cannot reset VmHWM here")
NOISE_MIB = 1.0


def peak_in_a_fresh_process(call: str) -> float:
    """As the bench reads it: in this process the C library may keep what others have freed."""
    code = f"import torch; from profforce.bench.peak import peak_of\n{call}\nprint(peak_of(run))"
    environment = {**os.environ, **peak.CHILD_ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@needs_linux
def test_what_is_freed_again_counts() -> None:
    call = """def run():
        torch.ones(24 * 2**18)  # 24 MiB, gone at once
        return torch.ones(8 * 2**18)
    run()"""
    found = peak_in_a_fresh_process(textwrap.dedent("    " + call))
    assert found == pytest.approx(24, abs=NOISE_MIB)


@needs_linux
def test_memory_of_other_libraries_counts() -> None:
    call = "run = lambda: bytearray(b'x' * 2**24) and None"
    assert peak_in_a_fresh_process(call) >= 16


@needs_linux
def test_a_child_reads_every_form_of_every_case() -> None:
    names = ["ours_fwd", "chunked_fwd", "chunked_fwdbwd"]
    cases = [{"B": 1, "H": 1, "T": 5, "K": 8}, {"B": 2, "H": 4, "T": 8192, "K": 64}]
    tiny, large = peaks_on_cpu(BenchConfig(device="cpu"), names, cases, 1)
    assert all((value or 0) <= NOISE_MIB for value in tiny.values())
    tensor = 2 * 4 * 8192 * 64 * 4 / 2**20
    scores = 2 * 4 * 8192 * 128 * 4 / 2**20
    assert (large["ours_fwd"] or 0) >= tensor - 2 * NOISE_MIB
    assert (large["chunked_fwd"] or 0) >= 2 * tensor + scores - 2 * NOISE_MIB
    assert (large["chunked_fwdbwd"] or 0) >= (large["chunked_fwd"] or 0) + tensor


def test_where_it_cannot_be_read_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peak, "can_measure", lambda: False)
    assert peaks_on_cpu(BenchConfig(), ["ours_fwd"], [{"B": 1}], 1) == [{"ours_fwd": None}]
    assert "not measured" in caplog.text


@needs_linux
def test_a_child_that_fails_is_said(caplog: pytest.LogCaptureFixture) -> None:
    cases = [{"B": 1, "H": 1, "T": 5, "K": 8}]
    assert peaks_on_cpu(BenchConfig(), ["none_fwd"], cases, 1) == [{"none_fwd": None}]
    assert "KeyError: 'none'" in caplog.text
