"""Vocos' network (Siuzdak 2023, arXiv:2306.00814); module names are those of the published weights.

ConvNeXt blocks at the rate of the mel frames, then a Fourier head whose spectrum is turned to audio
by an inverse STFT: whole, or frames at a time.

Shapes: B batch, T frames, n new ones, M mel channels, D width, F = n_fft // 2 + 1 bins, N samples.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profforce.audio.flow import Chain, ConvStage, OverlapAdd, Pointwise, Stage, residual

NORM_EPS = 1e-6
MAX_MAGNITUDE = 100.0
KERNEL = 7
TINY = 1e-11


@dataclass(frozen=True)
class VocosConfig:
    """What the network is built from."""

    num_mels: int
    width: int
    inner_width: int
    num_layers: int
    n_fft: int
    hop_length: int


class ConvNextBlock(nn.Module):
    """Depthwise convolution over time, then two layers at each frame, scaled and added."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.pwconv1 = nn.Linear(width, inner_width)
        self.pwconv2 = nn.Linear(inner_width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, D, T]`` to the same shape."""
        return x + self.pointwise(self.dwconv(x))

    def pointwise(self, x: Tensor) -> Tensor:
        """What follows the convolution, frame by frame: ``[B, D, T]`` to the same shape."""
        x = self.norm(x.transpose(1, 2))
        x = self.gamma * self.pwconv2(F.gelu(self.pwconv1(x)))
        return x.transpose(1, 2)


class Backbone(nn.Module):
    """Mel frames to hidden frames."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.embed = nn.Conv1d(config.num_mels, config.width, KERNEL, padding=KERNEL // 2)
        self.norm = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.convnext = nn.ModuleList(
            ConvNextBlock(config.width, config.inner_width) for _ in range(config.num_layers)
        )
        self.final_layer_norm = nn.LayerNorm(config.width, eps=NORM_EPS)

    def forward(self, mel: Tensor) -> Tensor:
        """``[B, M, T]`` to ``[B, D, T]``."""
        x = _over_channels(self.norm, self.embed(mel))
        for block in self.convnext:
            x = block(x)
        return _over_channels(self.final_layer_norm, x)


def _over_channels(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """``x [B, D, T]``, each frame normalised."""
    return norm(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class FourierHead(nn.Module):
    """Hidden frames to log magnitude and phase of each bin."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.out = nn.Linear(config.width, config.n_fft + 2)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, D, T]`` to a complex spectrum ``[B, F, T]``."""
        log_magnitude, phase = self.out(x.transpose(1, 2)).transpose(1, 2).chunk(2, 1)
        return torch.polar(log_magnitude.exp().clamp_max(MAX_MAGNITUDE), phase)


class VocosNetwork(nn.Module):
    """Backbone and head; the inverse STFT is framed as the mel is, ``T * hop_length`` samples."""

    window: Tensor

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.head = FourierHead(config)
        self.register_buffer("window", torch.hann_window(config.n_fft), persistent=False)

    def forward(self, mel: Tensor) -> Tensor:
        """Audio ``[B, T * hop_length]`` of ``mel [B, M, T]``, T >= 1."""
        return self.audio(self.head(self.backbone(mel)), self.overlap_add(), True)

    def overlap_add(self) -> OverlapAdd:
        """What sums the inverse STFT's frames; the ends that no whole frames cover are cut off."""
        config = self.config
        overlap = config.n_fft - config.hop_length
        return OverlapAdd(config.hop_length, overlap, overlap // 2, overlap - overlap // 2)

    def audio(self, spectrum: Tensor, into: OverlapAdd, last: bool) -> Tensor:
        """``[B, n hop_length]`` or what ``into`` gives out for ``spectrum [B, F, n]``."""
        config, num_frames = self.config, spectrum.shape[-1]
        if num_frames:
            window = self.window[:, None]
            frames = torch.fft.irfft(spectrum, n=config.n_fft, dim=1) * window
            weights = window.square().expand(1, -1, num_frames)
            summed = F.fold(
                torch.cat([frames, weights]),
                output_size=(1, (num_frames - 1) * config.hop_length + config.n_fft),
                kernel_size=(1, config.n_fft),
                stride=(1, config.hop_length),
            )[:, 0, 0]
        else:
            summed = self.window.new_zeros(len(spectrum) + 1, config.n_fft - config.hop_length)
        ready = into.push(summed, last)
        return ready[:-1] / ready[-1].clamp_min(TINY)

    def stages(self) -> Chain:
        """The network up to its spectrum, fed ``mel [B, M, n]`` bit by bit."""
        backbone = self.backbone
        stages: list[Stage] = [
            ConvStage(backbone.embed),
            Pointwise(partial(_over_channels, backbone.norm)),
        ]
        for block in backbone.convnext:
            assert isinstance(block, ConvNextBlock)
            stages.append(residual(Chain([ConvStage(block.dwconv), Pointwise(block.pointwise)])))
        stages.append(Pointwise(partial(_over_channels, backbone.final_layer_norm)))
        return Chain([*stages, Pointwise(self.head)])
