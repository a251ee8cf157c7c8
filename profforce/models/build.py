"""The model that settings ask for."""

from profforce.config import ModelConfig, ModelKind
from profforce.models.tacotron2 import Tacotron2
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TTSModel


def build_model(config: ModelConfig, num_symbols: int, num_mels: int) -> TTSModel:
    """A model of ``config.kind`` with fresh weights, drawn from torch's global generator.

    Args:
        config: kind and sizes.
        num_symbols: of the alphabet.
        num_mels: channels of a frame.

    Raises:
        UserError: for an unknown self-attention.
    """
    if config.kind == ModelKind.tacotron2:
        return Tacotron2(config, num_symbols, num_mels)
    return TransformerTTS(config, num_symbols, num_mels)
