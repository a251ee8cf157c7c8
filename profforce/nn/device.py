"""Choice of the device, said once."""

import logging

import torch

from profforce.errors import UserError

log = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """``auto`` takes CUDA where it exists, else the CPU; or any device that torch knows.

    Raises:
        UserError: if the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps") or (device.type == "cpu" and device.index):
            raise RuntimeError("no device to train on")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as err:
        raise UserError(
            "device is not available",
            where="device",
            got=f"'{name}' ({_first_sentence(err)})",
            expected="auto, cpu, cuda, cuda:N or mps",
            remedy="use device=auto",
        ) from err
    return device


def _first_sentence(err: Exception) -> str:
    """Of what PyTorch says, which may be a page long."""
    return str(err).splitlines()[0].partition(". ")[0].rstrip(".")


def describe(device: torch.device) -> str:
    """One phrase for the log."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"
