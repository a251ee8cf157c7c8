"""The discriminator and its loss."""

from dataclasses import dataclass
from enum import StrEnum

from profforce.config.checks import in_range


class DiscriminatorKind(StrEnum):
    """Network of the discriminator: bidirectional GRU, or dilated convolutions."""

    gru = "gru"
    conv = "conv"


class GanLoss(StrEnum):
    """Cross-entropy, least squares on probabilities, or hinge."""

    bce = "bce"
    least_squares = "least_squares"
    hinge = "hinge"


@dataclass
class DiscriminatorConfig:
    """What tells teacher-forced behaviour on real from that on self-made frames."""

    kind: DiscriminatorKind = DiscriminatorKind.gru
    width: int = 128
    num_layers: int = 1
    dropout: float = 0.0
    use_hidden: bool = True
    """See the decoder's hidden states."""
    use_outputs: bool = True
    """See the decoder's mel outputs (before the postnet)."""
    use_alignments: bool = False
    """See how attention moves: advance, spread and largest weight of the guided heads."""
    spectral_norm: bool = False
    """Bound the Lipschitz constant of its linear and convolution layers (arXiv:1802.05957)."""
    r1_weight: float = 0.0
    """Of R1, the penalty on its gradient by real behaviour (arXiv:1801.04406); 0 is off."""
    loss: GanLoss = GanLoss.bce
    lr: float = 3e-4
    crop_steps: int = 64
    """Decoder steps of the equal-length crops."""

    def __post_init__(self) -> None:
        in_range("discriminator", self, ("width", "num_layers", "crop_steps"), 1)
        in_range("discriminator", self, ("dropout",), 0, 1, below=True)
        in_range("discriminator", self, ("lr",), 0, above=True)
        in_range("discriminator", self, ("r1_weight",), 0)
        if not (self.use_hidden or self.use_outputs or self.use_alignments):
            raise ValueError(
                "discriminator.use_hidden, use_outputs and use_alignments are all false; "
                "set at least one to true"
            )
