"""The loop, the optimizer and what is written when."""

from dataclasses import dataclass
from enum import StrEnum

from profforce.config.checks import in_range
from profforce.config.precision import TrainerPrecision


class BestBy(StrEnum):
    """What the best checkpoints are kept by: the gap meter, or a figure of ``profforce evaluate``.

    The gap meter: mel distance of free runs plus the share that never stopped (docs/evaluate.md).
    """

    gap = "gap"
    failed = "failed"
    unaligned = "unaligned"
    stop_error_s = "stop_error_s"
    mcd_free_db = "mcd_free_db"
    dtw_free = "dtw_free"
    dtw_gap = "dtw_gap"
    focus = "focus"


@dataclass
class TrainerConfig:
    """The loop, the optimizer and what is written when."""

    steps: int = 100_000
    max_minutes: float | None = None
    """Stop after this much wall-clock time, saved and resumable; unlimited when unset."""
    precision: TrainerPrecision = TrainerPrecision.float32
    """Of the matrix products; float16 with a scaled loss. Free runs: ``freerun.precision``."""
    batch_size: int = 32
    """Utterances a batch, in each process."""
    max_frames: int | None = None
    """Budget of a batch in mel frames, padding included; ``batch_size`` is then the most
    utterances. A longer utterance is a batch of its own: ``data.max_seconds`` keeps it out."""
    accumulate: int = 1
    """Batches of each process whose gradients are summed before one optimizer step."""
    lr: float = 1e-3
    min_lr: float = 1e-5
    warmup_steps: int = 1000
    weight_decay: float = 1e-6
    clip_norm: float = 1.0
    ema_decay: float = 0.999
    """Decay of the averaged weights one samples with; 0 keeps the raw ones."""
    stop_weight: float = 1.0
    stop_positive_weight: float = 8.0
    guided_weight: float = 1.0
    guided_sigma: float = 0.4
    input_noise: float = 0.0
    """Noise on the frames that are fed to the decoder in teacher forcing, in deviations of the
    training mels; 0 is off."""
    scheduled_sampling: float = 0.0
    """Share of decoder steps that are fed the model's own prediction from a first parallel pass
    (Mihaylova and Martins 2019, arXiv:1906.07651); 0 is off."""
    log_every: int = 10
    evaluate_every: int = 1000
    """Steps between free-running samples, pictures and the gap meter."""
    checkpoint_every: int = 1000
    keep_last: int = 2
    keep_best: int = 2
    num_eval_sentences: int = 4
    best_by: BestBy = BestBy.gap
    """Score of the best checkpoints; any but ``gap`` is measured anew for each checkpoint."""
    num_score_sentences: int = 16
    """Held-out texts that it is measured on."""
    num_threads: int | None = None
    """CPU threads of torch; its default when unset."""
    timeout_minutes: float = 30.0
    """Longest wait of one of several processes for the others."""
    deterministic: bool = False
    recompute_activations: bool = False
    """Compute blocks anew in the backward pass: a third of the memory for a quarter more time."""
    segment_steps: int | None = None
    """Run the decoder in segments of so many decoder steps, of which the backward pass keeps only
    inputs and outputs: activation memory no longer grows with the length (linear attention only).
    ``recompute_activations`` then concerns the encoder alone."""

    def __post_init__(self) -> None:
        positive = [
            "steps",
            "batch_size",
            "accumulate",
            "warmup_steps",
            "log_every",
            "evaluate_every",
            "checkpoint_every",
            "keep_last",
            "num_eval_sentences",
            "num_score_sentences",
        ]
        in_range("trainer", self, positive, 1)
        in_range("trainer", self, ("num_threads",), 1, 4096)
        in_range("trainer", self, ("segment_steps", "max_frames"), 1)
        in_range("trainer", self, ("lr", "guided_sigma", "stop_positive_weight"), 0, above=True)
        in_range("trainer", self, ("clip_norm", "max_minutes"), 0, above=True, unlimited=True)
        in_range("trainer", self, ("timeout_minutes",), 0, 10_000, above=True)
        in_range(
            "trainer",
            self,
            ("min_lr", "weight_decay", "stop_weight", "guided_weight", "input_noise", "keep_best"),
            0,
        )
        in_range("trainer", self, ("scheduled_sampling",), 0, 1)
        in_range("trainer", self, ("ema_decay",), 0, 1, below=True)
