"""Reading the weights of a published vocoder: tensors only, and one line when they do not fit."""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from profforce.errors import UserError

UNFIT = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, EOFError),
    *(pickle.UnpicklingError, SafetensorError),
)
"""What reading a damaged or foreign file, and building a network from it, may raise."""


def read_tensors(path: Path) -> Mapping[str, Any]:
    """What ``path`` holds, on the CPU: ``.safetensors``, or PyTorch's format without any code."""
    if path.suffix == ".safetensors":
        return load_file(path)
    found: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found


@contextmanager
def fitting(name: str, path: Path, expected: str) -> Iterator[None]:
    """Turn what goes wrong inside, while the weights of ``name`` are loaded, into a UserError."""
    try:
        yield
    except UNFIT as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot load the {name} weights ({reason})", where=path, expected=expected
        ) from error


def require_same_mel(differences: str, path: Path) -> None:
    """Refuse a vocoder whose mel definition differs: ``differences`` names the values, or is ''."""
    if differences:
        raise UserError(
            "the vocoder was trained on another mel definition",
            where=path,
            got=differences,
            expected="the same definition",
            remedy="train the model on the vocoder's mel or set vocoder=griffin_lim",
        )
