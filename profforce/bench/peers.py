"""Other people's linear attention, for ``peers=true``: each where it is installed and fits.

All apply the feature map elu + 1 and the normaliser inside what is timed, as ours does.

Shapes: B batch, T time, H heads, K width of keys and values.
"""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from profforce.bench.suite import Case
from profforce.kernels.state import elu_plus_one

log = logging.getLogger(__name__)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From q, k, v to the output, all ``[B, T, H, K]``."""


@dataclass(frozen=True)
class Peer:
    """A library to compare with."""

    module: str
    """What is imported."""
    install: str
    """Arguments of pip install."""
    dtypes: tuple[str, ...]
    devices: dict[str, str]
    """Device types that it runs on, each with the module that this needs."""
    build: Callable[[Case, torch.device], Attend]

    def problem(self, dtype: str, device: torch.device) -> str | None:
        """Why it cannot take part; None if it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"it is not installed; pip install {self.install}"
        if dtype not in self.dtypes:
            return f"it has no {dtype}"
        if device.type not in self.devices:
            return f"it does not run on {device.type}"
        if importlib.util.find_spec(self.devices[device.type]) is None:
            return f"it was built without {device.type}"
        return None


def usable_peers(dtype: str, device: torch.device) -> list[str]:
    """Names of the libraries that can take part; the others are logged, with the reason."""
    problems = {name: peer.problem(dtype, device) for name, peer in PEERS.items()}
    for name, problem in problems.items():
        if problem is not None:
            log.warning("%s is left out: %s", name, problem)
    return [name for name, problem in problems.items() if problem is None]


def _fast_transformers(case: Case, device: torch.device) -> Attend:
    from fast_transformers.attention import CausalLinearAttention
    from fast_transformers.masking import LengthMask, TriangularCausalMask

    layer = CausalLinearAttention(case["K"]).to(device)  # its map is elu + 1 unless told otherwise
    causal = TriangularCausalMask(case["T"], device=device)
    full = LengthMask(torch.full((case["B"],), case["T"]), max_len=case["T"], device=device)
    call = cast(Callable[..., Any], layer)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cast(Tensor, call(q, k, v, causal, full, full))

    return attend


def _fla(case: Case, device: torch.device) -> Attend:
    from fla.ops.linear_attn import chunk_linear_attn

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = chunk_linear_attn(elu_plus_one(q), elu_plus_one(k), v, scale=1.0, normalize=True)
        return cast(Tensor, out)

    return attend


PEERS = {
    "fast_transformers": Peer(
        module="fast_transformers",
        install="--no-build-isolation pytorch-fast-transformers",
        dtypes=("float32",),
        devices={
            "cpu": "fast_transformers.causal_product.causal_product_cpu",
            "cuda": "fast_transformers.causal_product.causal_product_cuda",
        },
        build=_fast_transformers,
    ),
    "fla": Peer(
        module="fla",
        install="flash-linear-attention",
        dtypes=("float32", "bfloat16", "float16"),
        devices={"cuda": "triton"},
        build=_fla,
    ),
}
