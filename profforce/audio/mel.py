"""The one mel definition: HiFi-GAN's (Kong et al. 2020, arXiv:2010.05646), so vocoders plug in.

N samples, T = N // hop_length frames, M mel channels.
"""

import librosa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profforce.config import MelConfig
from profforce.errors import UserError

POWER_FLOOR = 1e-9
"""HiFi-GAN adds this to the power before the square root; it keeps the gradient finite."""


class MelSpectrogram(nn.Module):
    """Audio to natural-log mel amplitude.

    Frame t is centred on sample ``t * hop_length + hop_length / 2``: the signal is reflected by
    ``(n_fft - hop_length) / 2`` samples at both ends and framed without further centring, so that
    T frames stand for exactly ``T * hop_length`` samples.
    """

    filterbank: Tensor
    window: Tensor

    def __init__(self, config: MelConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("filterbank", mel_filterbank(config), persistent=False)
        self.register_buffer("window", torch.hann_window(config.win_length), persistent=False)

    def forward(self, audio: Tensor) -> Tensor:
        """Mel of ``audio [..., N]`` (amplitude, full scale 1.0) as ``[..., T, M]``.

        T is ``N // hop_length``; audio shorter than a hop has no frame.
        """
        config = self.config
        *lead, num_samples = audio.shape
        num_frames = num_samples // config.hop_length
        if num_frames == 0 or audio.numel() == 0:
            return audio.new_zeros((*lead, num_frames, config.num_mels))
        left, right = padding(config)
        spectrum = torch.stft(
            reflect_pad(audio.reshape(-1, num_samples), left, right),
            config.n_fft,
            config.hop_length,
            config.win_length,
            self.window.to(audio.dtype),
            center=False,
            return_complex=True,
        )
        power = spectrum.real.square() + spectrum.imag.square()
        amplitude = (power + POWER_FLOOR).sqrt()
        mel = torch.matmul(self.filterbank.to(audio.dtype), amplitude)
        log_mel = mel.clamp_min(config.log_floor).log()
        return log_mel.transpose(1, 2).reshape(*lead, num_frames, config.num_mels)


def mel_filterbank(config: MelConfig) -> Tensor:
    """Slaney filterbank ``[M, n_fft // 2 + 1]``, area-normalised, float32."""
    weights = librosa.filters.mel(
        sr=config.sample_rate,
        n_fft=config.n_fft,
        n_mels=config.num_mels,
        fmin=config.fmin_hz,
        fmax=config.fmax_hz,
    )
    return torch.from_numpy(weights)


def padding(config: MelConfig) -> tuple[int, int]:
    """Samples reflected before and after the signal; together ``n_fft - hop_length``."""
    total = config.n_fft - config.hop_length
    return total // 2, total - total // 2


def reflect_pad(audio: Tensor, left: int, right: int) -> Tensor:
    """Reflect ``audio [B, N]`` at both ends, also when N is shorter than the padding."""
    num_samples = audio.shape[-1]
    if num_samples > max(left, right):
        return F.pad(audio, (left, right), mode="reflect")
    period = max(2 * (num_samples - 1), 1)
    index = torch.arange(-left, num_samples + right, device=audio.device) % period
    return audio[..., torch.minimum(index, period - index) if num_samples > 1 else index * 0]


def require_mel(mel: Tensor, config: MelConfig) -> None:
    """Refuse a mel that is not ``[T, M]``, or whose values a diverged model made non-finite."""
    if mel.ndim != 2 or mel.shape[1] != config.num_mels:
        raise ValueError(f"mel must have shape [T, {config.num_mels}], got {list(mel.shape)}")
    if not bool(torch.isfinite(mel).all()):
        raise UserError(
            "mel holds values that are not finite (nan or inf)",
            where=f"a mel of {mel.shape[0]} frames",
            remedy="the model has probably diverged; sample an earlier checkpoint",
        )
