"""Peak memory of one call beyond its inputs: results, everything in between, and the workspace.

On CUDA PyTorch counts its own allocations. On the CPU nothing counts those of other libraries, so
the kernel is asked: Linux keeps the most memory that a process ever had resident (``VmHWM``) and
sets it back on demand. A fresh process a group of forms runs a tiny case first, so that libraries
are loaded, and gives freed memory back at once (fixed ``MALLOC_MMAP_THRESHOLD_``), so that a call
cannot hide in what an earlier one left. The figure counts whoever allocates, but not memory that is
reserved and never touched; Linux keeps it to within a MiB or so.
"""

import ctypes
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import profforce
from profforce.bench.suite import Case, find_suite
from profforce.config import BenchConfig

log = logging.getLogger(__name__)

MIB = 2**20
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
CHILD_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MKL_DISABLE_FAST_MM": "1"}


def peaks_on_cuda(
    forms: Mapping[str, Callable[[], object]], device: torch.device
) -> dict[str, float | None]:
    """MiB of each form beyond what is allocated already; call each once before."""
    found: dict[str, float | None] = {}
    for name, run in forms.items():
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        found[name] = (torch.cuda.max_memory_allocated(device) - before) / MIB
    return found


def peaks_on_cpu(
    config: BenchConfig, names: list[str], cases: list[Case], threads: int
) -> list[dict[str, float | None]]:
    """MiB of each form in every case, from a process of its own; None where nothing can tell."""
    nothing: list[dict[str, float | None]] = [dict.fromkeys(names) for _ in cases]
    if not can_measure():
        log.warning("peak memory is not measured: this system cannot reset VmHWM")
        return nothing
    work = {"config": config, "names": names, "cases": cases, "threads": threads}
    root = str(Path(profforce.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "profforce.bench.peak"],
        input=pickle.dumps(work),
        env={**os.environ, **CHILD_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        said = (text or f"exit code {done.returncode}").splitlines()[-1]
        log.warning("peak memory of %s is not known: %s", ", ".join(names), said)
        return nothing
    answer: list[dict[str, float | None]] = json.loads(done.stdout)
    return answer


def can_measure() -> bool:
    """Can this process set back the peak that Linux keeps of it?"""
    try:
        RESET.write_text(RESET_PEAK)
        return "VmHWM" in STATUS.read_text()
    except OSError:
        return False


def peak_of(run: Callable[[], object]) -> float:
    """MiB by which resident memory rose at most while ``run`` was called."""
    _give_back()
    RESET.write_text(RESET_PEAK)
    before = _resident("VmRSS")
    result = run()
    peak = _resident("VmHWM")
    del result
    return max(0.0, peak - before)


def _resident(field: str) -> float:
    (line,) = (row for row in STATUS.read_text().splitlines() if row.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024  # the file has KiB


def _give_back() -> None:
    """Let the C library return what it holds free, where it can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main() -> None:
    """The child: its parent's work on stdin, one object a case as JSON on stdout."""
    work = pickle.load(sys.stdin.buffer)
    config: BenchConfig = work["config"]
    torch.set_num_threads(work["threads"])
    suite, names, device = find_suite(config.suite), work["names"], torch.device("cpu")
    found = []
    for case in work["cases"]:
        for tiny in suite.forms(names, suite.warmup_case(case), config, device).values():
            tiny.run()
        forms = suite.forms(names, case, config, device)
        found.append({name: peak_of(form.run) for name, form in forms.items()})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
