"""Sizes and kinds of the model."""

from dataclasses import dataclass
from enum import StrEnum

from profforce.config.checks import in_range


class ModelKind(StrEnum):
    """Network of the model: a Transformer, or Tacotron 2's recurrent one."""

    transformer = "transformer"
    tacotron2 = "tacotron2"


class Attention(StrEnum):
    """Self-attention of the decoder."""

    linear = "linear"
    softmax = "softmax"


class CrossAttentionKind(StrEnum):
    """Attention of decoder steps over the text: by content alone, or by content and place."""

    content = "content"
    monotonic = "monotonic"
    forward = "forward"


class PositionsKind(StrEnum):
    """What tells encoder and decoder where they are: sinusoids of the position, or distances."""

    absolute = "absolute"
    relative = "relative"


class Activation(StrEnum):
    """Nonlinearity of the feed-forward layers."""

    relu = "relu"
    gelu = "gelu"
    silu = "silu"


class FeatureMap(StrEnum):
    """Feature map of linear attention."""

    elu = "elu"
    relu = "relu"
    identity = "identity"


@dataclass
class ModelConfig:
    """Sizes and kinds of the model.

    Tacotron 2 has ``width`` for every LSTM and takes no notice of what is the Transformer's alone:
    attention, feature map, heads, feed-forward, activation, ReZero and guided layers.
    """

    kind: ModelKind = ModelKind.transformer
    attention: str = "linear"
    """Decoder self-attention: linear, softmax, or a name given to ``register_self_attention``."""
    feature_map: FeatureMap = FeatureMap.elu
    cross_attention: CrossAttentionKind = CrossAttentionKind.content
    """forward: each step goes on from where the last one attended. monotonic: a place in the text
    that a sum of advances tells. Both keep their place in texts of any length; content may not."""
    positions: PositionsKind = PositionsKind.absolute
    """absolute: sinusoids, which end with the longest text of training. relative: distances in the
    encoder's attention and a convolution over the decoder's last steps, which do not."""
    recent_steps: int = 5
    """Decoder steps that the convolution of positions=relative sees."""
    symbols_per_frame: float = 0.17
    """Pace that forward and monotonic cross-attention start training with. English read aloud:
    0.17; it need not fit well."""
    width: int = 256
    """D, model width."""
    num_heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 4
    feedforward_width: int = 1024
    encoder_conv_layers: int = 3
    encoder_conv_kernel: int = 5
    dropout: float = 0.1
    prenet_width: int = 128
    prenet_layers: int = 2
    prenet_dropout: float = 0.5
    """Kept on at inference, drawn from a counter-based generator (seed, utterance, frame)."""
    reduction_factor: int = 2
    """R, mel frames a decoder step."""
    postnet_layers: int = 5
    postnet_width: int = 256
    postnet_kernel: int = 5
    activation: Activation = Activation.relu
    rezero: bool = False
    """Residual gates that start at zero, without layer norms inside the decoder blocks
    (Bachlechner et al. 2020)."""
    num_speakers: int = 0
    """Size of the speaker embedding; 0 means none. Set from the data when left at 0."""
    guided_layers: int = 2
    """Last decoder layers whose cross-attention is guided and shown."""
    guided_heads: int = 2
    """Heads of those layers that are guided and shown."""
    attention_width: int = 128
    """Of Tacotron 2's attention: queries, keys and locations meet in it."""
    location_channels: int = 32
    """Filters of that attention over where it was."""
    location_kernel: int = 31
    """Symbols that such a filter sees."""

    @property
    def hidden_width(self) -> int:
        """Of the decoder's last hidden states, those that the outputs are made of."""
        return self.width * (2 if self.kind == ModelKind.tacotron2 else 1)

    @property
    def num_alignments(self) -> int:
        """G, alignments that are guided and shown."""
        if self.kind == ModelKind.tacotron2:
            return 1
        return min(self.guided_layers, self.decoder_layers) * self.guided_heads

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_guided()
        self._check_widths()

    def _check_ranges(self) -> None:
        positive = [
            "attention_width",
            "location_channels",
            "location_kernel",
            "width",
            "num_heads",
            "encoder_layers",
            "decoder_layers",
            "feedforward_width",
            "encoder_conv_kernel",
            "prenet_width",
            "prenet_layers",
            "reduction_factor",
            "postnet_kernel",
            "postnet_width",
            "recent_steps",
        ]
        in_range("model", self, positive, 1)
        in_range("model", self, ("encoder_conv_layers", "postnet_layers", "num_speakers"), 0)
        in_range("model", self, ("dropout", "prenet_dropout"), 0, 1, below=True)
        in_range("model", self, ("guided_layers", "guided_heads"), 1)
        in_range("model", self, ("symbols_per_frame",), 0, above=True)

    def _check_guided(self) -> None:
        for part, whole in (("guided_layers", "decoder_layers"), ("guided_heads", "num_heads")):
            got, most = getattr(self, part), getattr(self, whole)
            if got > most:
                raise ValueError(
                    f"model.{part} must be <= model.{whole} = {most}, got {got}; "
                    f"set model.{part}={most}"
                )

    def _check_widths(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(
                f"model.width must be a multiple of model.num_heads = {self.num_heads}, "
                f"got {self.width}"
            )
        if self.positions == PositionsKind.relative and not self.encoder_conv_layers:
            raise ValueError(
                "model.positions=relative needs model.encoder_conv_layers >= 1, got 0: "
                "distances alone do not tell before from after"
            )
        if self.width % 2:
            raise ValueError(f"model.width must be even, got {self.width}")
        for name in ("encoder_conv_kernel", "postnet_kernel", "location_kernel"):
            if getattr(self, name) % 2 == 0:
                raise ValueError(f"model.{name} must be odd, got {getattr(self, name)}")
