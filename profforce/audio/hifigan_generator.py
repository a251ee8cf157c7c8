"""HiFi-GAN's generator network; module names are those of the published checkpoints.

B batch, T frames, M mel channels, C channels, N samples.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profforce.audio.flow import Chain, ConvStage, Pointwise, Stage, Together, UpStage, residual

SLOPE = 0.1
LAST_SLOPE = 0.01


@dataclass(frozen=True)
class HifiGanConfig:
    """The generator's part of a HiFi-GAN config.json."""

    num_mels: int
    resblock: str
    upsample_rates: tuple[int, ...]
    upsample_kernel_sizes: tuple[int, ...]
    upsample_initial_channel: int
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]


class Generator(nn.Module):
    """Transposed convolutions up to the sample rate, with residual blocks after each."""

    def __init__(self, config: HifiGanConfig) -> None:
        super().__init__()
        width = config.upsample_initial_channel
        self.num_kernels = len(config.resblock_kernel_sizes)
        self.conv_pre = nn.Conv1d(config.num_mels, width, 7, padding=3)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        block = TwofoldBlock if config.resblock == "1" else PlainBlock
        rates = zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)
        for rate, kernel in rates:
            up = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(up)
            width //= 2
            for size, dilations in zip(
                config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True
            ):
                self.resblocks.append(block(width, size, dilations))
        self.conv_post = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        """Audio ``[B, 1, T * hop]`` of ``mel [B, M, T]``."""
        x: Tensor = self.conv_pre(mel)
        for number, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, SLOPE))
            first = number * self.num_kernels
            blocks = [self.resblocks[first + i] for i in range(self.num_kernels)]
            x = torch.stack([block(x) for block in blocks]).sum(0) / self.num_kernels
        return torch.tanh(self.conv_post(F.leaky_relu(x, LAST_SLOPE)))

    def stages(self) -> Chain:
        """:meth:`forward`, fed ``mel [B, M, n]`` bit by bit."""
        stages: list[Stage] = [_conv_stage(self.conv_pre)]
        for number, up in enumerate(self.ups):
            assert isinstance(up, nn.ConvTranspose1d)
            first = number * self.num_kernels
            blocks = [self.resblocks[first + i] for i in range(self.num_kernels)]
            stages += [
                Pointwise(partial(F.leaky_relu, negative_slope=SLOPE)),
                UpStage(up),
                Together([block.stages() for block in blocks]),  # type: ignore[operator]
                Pointwise(lambda x: x / self.num_kernels),
            ]
        last = Pointwise(partial(F.leaky_relu, negative_slope=LAST_SLOPE))
        return Chain([*stages, last, _conv_stage(self.conv_post), Pointwise(torch.tanh)])


class TwofoldBlock(nn.Module):
    """Residual block "1": each step is a dilated and a plain convolution."""

    def __init__(self, width: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_same(width, kernel, d) for d in dilations)
        self.convs2 = nn.ModuleList(_same(width, kernel, 1) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, N]`` to the same shape."""
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, SLOPE)), SLOPE))
        return x

    def stages(self) -> Chain:
        """:meth:`forward`, fed bit by bit."""
        pairs = zip(self.convs1, self.convs2, strict=True)
        return Chain([residual(_after_slope(dilated, plain)) for dilated, plain in pairs])


class PlainBlock(nn.Module):
    """Residual block "2": each step is one dilated convolution."""

    def __init__(self, width: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(_same(width, kernel, d) for d in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, N]`` to the same shape."""
        for dilated in self.convs:
            x = x + dilated(F.leaky_relu(x, SLOPE))
        return x

    def stages(self) -> Chain:
        """:meth:`forward`, fed bit by bit."""
        return Chain([residual(_after_slope(dilated)) for dilated in self.convs])


def generator_config(settings: Mapping[str, object]) -> HifiGanConfig:
    """The generator's settings from a config.json; KeyError, TypeError or ValueError if unfit."""

    def ints(name: str) -> tuple[int, ...]:
        values = settings[name]
        if not isinstance(values, list):
            raise TypeError(f"{name} must be a list")
        return tuple(int(value) for value in values)

    dilations = settings["resblock_dilation_sizes"]
    if not isinstance(dilations, list):
        raise TypeError("resblock_dilation_sizes must be a list")
    config = HifiGanConfig(
        num_mels=int(str(settings["num_mels"])),
        resblock=str(settings["resblock"]),
        upsample_rates=ints("upsample_rates"),
        upsample_kernel_sizes=ints("upsample_kernel_sizes"),
        upsample_initial_channel=int(str(settings["upsample_initial_channel"])),
        resblock_kernel_sizes=ints("resblock_kernel_sizes"),
        resblock_dilation_sizes=tuple(tuple(int(d) for d in row) for row in dilations),
    )
    if math.prod(config.upsample_rates) != int(str(settings["hop_size"])):
        raise ValueError("upsample_rates must multiply to hop_size")
    return config


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain weights for those stored as magnitude and direction, by either of torch's names."""
    folded: dict[str, Tensor] = {}
    for name, value in state.items():
        for magnitude, direction in (
            ("weight_g", "weight_v"),
            ("parametrizations.weight.original0", "parametrizations.weight.original1"),
        ):
            if name.endswith(f".{magnitude}"):
                stem = name.removesuffix(magnitude)
                v = state[stem + direction]
                norm = v.flatten(1).norm(dim=1).view(-1, *[1] * (v.ndim - 1))
                folded[f"{stem}weight"] = value * v / norm
                break
            if name.endswith(f".{direction}"):
                break
        else:
            folded[name] = value
    return folded


def _conv_stage(conv: nn.Module) -> ConvStage:
    assert isinstance(conv, nn.Conv1d)
    return ConvStage(conv)


def _after_slope(*convs: nn.Module) -> Chain:
    """Each of ``convs`` after a leaky ReLU."""
    slope = Pointwise(partial(F.leaky_relu, negative_slope=SLOPE))
    return Chain([stage for conv in convs for stage in (slope, _conv_stage(conv))])


def _same(width: int, kernel: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(width, width, kernel, dilation=dilation, padding=dilation * (kernel - 1) // 2)
