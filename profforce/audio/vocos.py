"""Vocos vocoder (Siuzdak 2023, arXiv:2306.00814) from weights in the published layout.

A folder with ``config.yaml`` and ``pytorch_model.bin`` or ``model.safetensors``. The original
24 kHz weights are for mels of 100 htk channels, which no model of this project makes; those for
HiFi-GAN's definition (80 slaney channels) fit.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from profforce.audio.mel import mel_filterbank, require_mel
from profforce.audio.vocos_network import VocosConfig, VocosNetwork
from profforce.audio.weights import fitting, read_tensors, require_same_mel
from profforce.config import MelConfig
from profforce.errors import UserError

FILES = ("model.safetensors", "pytorch_model.bin")
LAYOUT = f"a folder with config.yaml and {' or '.join(FILES)}, or the path of the latter"
FITTING = "weights of Vocos that fit the config.yaml beside them"
CLASSES = {
    "feature_extractor": "MelSpectrogramFeatures",
    "backbone": "VocosBackbone",
    "head": "ISTFTHead",
}
FILTERBANK = "feature_extractor.mel_spec.mel_scale.fb"
CLOSE = 1e-3
"""Relative to a filterbank's largest weight: no two definitions are as near."""


class Vocos:
    """Vocoder with Vocos weights."""

    def __init__(
        self,
        mel: MelConfig,
        *,
        checkpoint: str | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """``checkpoint`` is the folder of config and weights, or the path of the weights.

        Raises :class:`UserError` when they are missing or unreadable, or when they were trained on
        another mel definition than ``mel``.
        """
        path = find_files(checkpoint)
        settings = _read_config(path.with_name("config.yaml"))
        with fitting("Vocos", path, FITTING):
            state = read_tensors(path)
        require_same_mel(_differences(mel, settings["feature_extractor"], state, path), path)
        with fitting("Vocos", path, FITTING):
            network = VocosNetwork(_network_config(settings, mel))
            mine = ("backbone.", "head.out.")
            network.load_state_dict({k: v for k, v in state.items() if k.startswith(mine)})
        self.mel = mel
        self._device = torch.device(device)
        self._network = network.to(self._device).eval()

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        """Audio ``[T * hop_length]`` float32 of ``mel [T, M]``, natural-log amplitude."""
        require_mel(mel, self.mel)
        if mel.shape[0] == 0:
            return mel.new_zeros(0, dtype=torch.float32)
        audio: Tensor = self._network(mel.to(self._device, torch.float32).T[None])
        return audio[0]

    def stream(self) -> "VocosStream":
        """The same audio from frames as they come."""
        return VocosStream(self._network, self.mel, self._device)


class VocosStream:
    """One utterance's audio, that of the whole; with eight layers it takes 29 frames ahead."""

    def __init__(self, network: VocosNetwork, mel: MelConfig, device: torch.device) -> None:
        self._network, self._mel, self._device = network, mel, device
        self._stages, self._sum = network.stages(), network.overlap_add()

    @torch.inference_mode()
    def push(self, mel: Tensor, last: bool) -> Tensor:
        """Audio ``[k hop_length]`` that is known with ``mel [n, M]``; all that is left if last."""
        require_mel(mel, self._mel)
        spectrum = self._stages.push(mel.to(self._device, torch.float32).T[None], last)
        return self._network.audio(spectrum, self._sum, last)[0]


def find_files(checkpoint: str | None) -> Path:
    """The weights that ``checkpoint`` names: a file, or the one of a folder."""
    if checkpoint is None:
        raise UserError(
            "Vocos needs weights",
            where="vocoder=vocos",
            expected=LAYOUT,
            remedy="set vocoder_checkpoint=PATH",
        )
    path = Path(checkpoint)
    for candidate in [path / name for name in FILES] if path.is_dir() else [path]:
        if candidate.is_file():
            return candidate
    raise UserError("no such vocoder checkpoint", where=path, expected=LAYOUT)


def _read_config(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The arguments of each part of the network."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError("Vocos' config.yaml must lie beside the weights", where=path) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError("cannot read Vocos' config", where=path, got=str(error)) from error
    found = {}
    for part, wanted in CLASSES.items():
        section = settings.get(part) if isinstance(settings, dict) else None
        section = section if isinstance(section, dict) else {}
        named, arguments = str(section.get("class_path")), section.get("init_args") or {}
        if named.rsplit(".", 1)[-1] != wanted or not isinstance(arguments, dict):
            got = f"{part}: {named}"
            raise UserError("this Vocos cannot be run", where=path, got=got, expected=wanted)
        found[part] = arguments
    if found["backbone"].get("adanorm_num_embeddings"):
        got, expected = "adanorm_num_embeddings", "weights for mels, not for EnCodec's tokens"
        raise UserError("this Vocos cannot be run", where=path, got=got, expected=expected)
    return found


def _differences(
    mel: MelConfig, stated: Mapping[str, Any], state: Mapping[str, Any], path: Path
) -> str:
    """What differs from ``mel``, or ''.

    Where the weights hold their filterbank, it counts in place of what the config says of it: forks
    have their own defaults. The floor of the logarithm stands in neither: 1e-7 in the original,
    1e-5 in the forks for HiFi-GAN's mels.
    """
    try:
        rate = int(stated.get("sample_rate", 24000))
        n_fft = int(stated.get("n_fft", 1024))
        top = stated.get("f_max")
        trained = MelConfig(
            sample_rate=rate,
            n_fft=n_fft,
            hop_length=int(stated.get("hop_length", 256)),
            win_length=n_fft,
            num_mels=int(stated.get("n_mels", 100)),
            fmin_hz=float(stated.get("f_min", 0.0)),
            fmax_hz=rate / 2 if top is None else float(top),
            log_floor=mel.log_floor,
        )
    except (TypeError, ValueError) as error:
        raise UserError(
            f"Vocos' config misstates the mel definition ({error})",
            where=path.with_name("config.yaml"),
        ) from error
    scale, norm = stated.get("mel_scale", "htk"), stated.get("norm")
    if _same_filters(mel, state.get(FILTERBANK)):
        trained = replace(trained, fmin_hz=mel.fmin_hz, fmax_hz=mel.fmax_hz)
        scale = norm = "slaney"
    rows = [mel.differences(trained)]
    rows += [f"mel scale slaney != {scale}"] if scale != "slaney" else []
    rows += [f"mel norm slaney != {norm}"] if norm != "slaney" else []
    return ", ".join(row for row in rows if row)


def _same_filters(mel: MelConfig, filters: Any) -> bool:
    """Whether ``filters [F, M]`` are those of ``mel``."""
    own = mel_filterbank(mel).T
    if not isinstance(filters, Tensor) or filters.shape != own.shape:
        return False
    return bool((filters - own).abs().max() <= CLOSE * own.max())


def _network_config(settings: Mapping[str, Mapping[str, Any]], mel: MelConfig) -> VocosConfig:
    """The network's settings; ValueError, KeyError or TypeError if unfit."""
    backbone, head = settings["backbone"], settings["head"]
    config = VocosConfig(
        num_mels=int(backbone["input_channels"]),
        width=int(backbone["dim"]),
        inner_width=int(backbone["intermediate_dim"]),
        num_layers=int(backbone["num_layers"]),
        n_fft=int(head["n_fft"]),
        hop_length=int(head["hop_length"]),
    )
    if config.hop_length != mel.hop_length or config.num_mels != mel.num_mels:
        raise ValueError(
            f"head and backbone are for {config.num_mels} channels every {config.hop_length} "
            f"samples, the mels have {mel.num_mels} every {mel.hop_length}"
        )
    return config
