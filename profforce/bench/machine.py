"""What the figures of a benchmark depend on."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import profforce
from profforce.config import BenchConfig, TrainingBenchConfig
from profforce.kernels.ops import describe

Environment = dict[str, str | int | float | None]
CPU_INFO = Path("/proc/cpuinfo")


def environment(config: BenchConfig, device: torch.device) -> Environment:
    """Versions, hardware, threads and settings; None for what cannot be known or is absent."""
    cuda = device.type == "cuda"
    training: Environment = {}
    if isinstance(config, TrainingBenchConfig):
        training["training"] = " ".join(config.words)
    return {
        "profforce": profforce.__version__,
        "git_commit": git_commit(Path(profforce.__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fast_transformers": _version("pytorch-fast-transformers"),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if cuda else str(device),
        "kernel": describe(device),
        "dtype": config.dtype.value,
        "repeats": config.repeats,
        "warmup": config.warmup,
        "seed": config.seed,
        **training,
    }


def cpu_model() -> str | None:
    """Name of the processor."""
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def git_commit(folder: Path) -> str | None:
    """Commit of the checkout that ``folder`` belongs to, ``+`` if files were changed since."""
    if not (folder.parent / ".git").exists():
        return None
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD").strip()
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".").strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
