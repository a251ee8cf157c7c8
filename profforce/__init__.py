"""profforce: professor forcing for autoregressive mel-spectrogram Transformers."""

__version__ = "0.1.0"
