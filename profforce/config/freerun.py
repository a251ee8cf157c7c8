"""The sample pool of a training."""

from dataclasses import dataclass

from profforce.config.checks import in_range
from profforce.config.precision import Precision


@dataclass
class FreerunConfig:
    """The sample pool."""

    every: int = 25
    """N: optimizer steps between refreshes of the sample pool."""
    pool_size: int = 256
    """G: utterances generated at once, by all processes together."""
    batch_size: int | None = None
    """Pool samples of a forced step; half of ``trainer.batch_size`` when unset: their pass,
    with the gradients of that over the recordings beside it, then needs no more memory."""
    splice: float = 0.0
    """Share of the pool's texts that nobody recorded: the beginning of one utterance and the end of
    another, met between two words where the model's attention finds them."""
    join: float = 0.0
    """Share of the pool's texts that are two utterances, one after the other, as long as that is no
    longer than the longest recording: the model then hears itself say long texts."""
    weight_noise: float = 0.0
    """Deviation of the factors on the weights that generate, new for each pool: the model then errs
    on texts that it knows as it does on others."""
    max_length_ratio: float = 1.5
    """A free run ends at this multiple of the real utterance's frames."""
    stop_threshold: float = 0.5
    precision: Precision = Precision.auto
    """Of the weights that generate; int8 is the fastest and the least exact."""
    ahead: int = 0
    """Steps before its need at which a pool is begun, beside the training (on the CPU)."""
    max_memory_mib: float = 1024.0
    """Room for what is generated at once; more utterances wait for their turn."""

    def __post_init__(self) -> None:
        in_range("freerun", self, ("every", "pool_size", "batch_size"), 1)
        in_range("freerun", self, ("ahead",), 0)
        in_range("freerun", self, ("max_memory_mib",), 0, above=True, unlimited=True)
        in_range("freerun", self, ("splice", "join", "weight_noise"), 0, 1)
        in_range("freerun", self, ("max_length_ratio",), 0, 100, above=True)
        in_range("freerun", self, ("stop_threshold",), 0, 1, above=True, below=True)
        shares = [share for share in (self.splice, self.join) if not isinstance(share, str)]
        if sum(shares) > 1 + 1e-9:
            raise ValueError(
                "freerun.splice and freerun.join are shares of one pool: they must add up to 1 at "
                f"most, got {sum(shares):g}"
            )
        if not isinstance(self.ahead, str) and self.ahead >= self.every:
            raise ValueError(
                f"freerun.ahead must be < freerun.every = {self.every}, got {self.ahead}"
            )
