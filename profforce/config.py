"""Typed settings and their checks. Plain dataclasses: nothing here knows Hydra.

Units are in the names or docstrings. A value that cannot work raises ``ValueError`` naming the
key, what was given and what is allowed; the command line turns it into one line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum

MISSING_TEXT = "???"


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


class TextFrontEnd(StrEnum):
    """How text becomes symbols: graphemes, raw IPA, or phonemes by an installed espeak-ng."""

    graphemes = "graphemes"
    ipa = "ipa"
    espeak = "espeak"


class DiscriminatorKind(StrEnum):
    """Network of the discriminator: bidirectional GRU, or dilated convolutions."""

    gru = "gru"
    conv = "conv"


class Precision(StrEnum):
    """Of the weights while a model free-runs. auto: bfloat16 where the processor multiplies it."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


class TrainerPrecision(StrEnum):
    """Of the matrix products in training; weights and losses are float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class GanLoss(StrEnum):
    """Cross-entropy, least squares on probabilities, or hinge."""

    bce = "bce"
    least_squares = "least_squares"
    hinge = "hinge"


class MethodName(StrEnum):
    """Training method."""

    teacher_forcing = "teacher_forcing"
    professor_forcing = "professor_forcing"
    through_time = "through_time"


class DataKind(StrEnum):
    """Which recipe prepares the corpus."""

    demo = "demo"
    synthetic = "synthetic"
    asterisk = "asterisk"
    ljspeech = "ljspeech"
    custom = "custom"


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


class BenchDtype(StrEnum):
    """Type of the inputs of a benchmark."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class VocoderKind(StrEnum):
    """From mel to audio: built in, or weights of HiFi-GAN or Vocos."""

    griffin_lim = "griffin_lim"
    hifigan = "hifigan"
    vocos = "vocos"


def _in_range(
    owner: str,
    obj: object,
    names: Sequence[str],
    low: float | None = None,
    high: float | None = None,
    *,
    above: bool = False,
    below: bool = False,
    unlimited: bool = False,
) -> None:
    """Check that each attribute lies between the limits (open ends with ``above``/``below``).

    Only what is ``unlimited`` may be infinite.
    """
    for name in names:
        value = getattr(obj, name)
        if value is None or isinstance(value, str):  # unset, or an interpolation not yet resolved
            continue
        too_low = low is not None and (value <= low if above else value < low)
        too_high = high is not None and (value >= high if below else value > high)
        endless = value in (float("inf"), float("-inf")) and not unlimited
        if too_low or too_high or endless or value != value:
            left = "" if low is None else f"{'>' if above else '>='} {low:g}"
            right = "" if high is None else f"{'<' if below else '<='} {high:g}"
            allowed = " and ".join(part for part in (left, right, endless and "finite") if part)
            raise ValueError(f"{owner}.{name} must be {allowed}, got {value}")


class AudioFormat(StrEnum):
    """Format of the files that ``profforce sample`` writes; raw is samples without a header."""

    wav = "wav"
    flac = "flac"
    raw = "raw"


class AudioSubtype(StrEnum):
    """Samples of those files: integers of 16 or 24 bits, or (wav only) 32-bit floats."""

    PCM_16 = "PCM_16"
    PCM_24 = "PCM_24"
    FLOAT = "FLOAT"


@dataclass
class MelConfig:
    """The mel definition, HiFi-GAN's universal one by default. Two mels agree only if all agree."""

    sample_rate: int = 22050
    n_fft: int = 1024
    hop_length: int = 256
    win_length: int = 1024
    num_mels: int = 80
    fmin_hz: float = 0.0
    fmax_hz: float = 8000.0
    log_floor: float = 1e-5
    """mel = log(max(amplitude, log_floor)), natural logarithm."""

    def __post_init__(self) -> None:
        _in_range("mel", self, ("sample_rate", "n_fft", "hop_length", "win_length", "num_mels"), 1)
        _in_range("mel", self, ("log_floor",), 0, above=True)
        _in_range("mel", self, ("fmin_hz", "fmax_hz"), 0)
        if self.fmax_hz <= self.fmin_hz or self.fmax_hz > self.sample_rate / 2:
            raise ValueError(
                f"mel.fmax_hz must lie in (mel.fmin_hz, mel.sample_rate / 2] = "
                f"({self.fmin_hz:g}, {self.sample_rate / 2:g}], got {self.fmax_hz:g}"
            )
        if self.win_length > self.n_fft:
            raise ValueError(
                f"mel.win_length must be <= mel.n_fft = {self.n_fft}, got {self.win_length}"
            )
        if self.hop_length > self.win_length:
            raise ValueError(
                f"mel.hop_length must be <= mel.win_length = {self.win_length}, "
                f"got {self.hop_length}"
            )

    def differences(self, other: "MelConfig") -> str:
        """Human-readable list of the fields that differ (``name self != other``), or ''."""
        rows = [
            f"{f.name} {getattr(self, f.name)} != {getattr(other, f.name)}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]
        return ", ".join(rows)


@dataclass
class TextConfig:
    """Text front end."""

    front_end: TextFrontEnd = TextFrontEnd.graphemes
    language: str = "en-us"
    """Language for espeak-ng and for normalisation (only English numbers are spelt out)."""
    normalize: bool = True
    """Spell out numbers, currency, times and abbreviations; lower-case; transliterate to ASCII."""


@dataclass
class DataConfig:
    """A corpus: a folder with ``metadata.csv`` or ``manifest.jsonl`` and audio files."""

    kind: DataKind = DataKind.custom
    root: str = MISSING_TEXT
    """Folder of the corpus: read by training, filled by ``profforce data prepare``."""
    source: str | None = None
    """Where prepare finds the raw material (folder, .deb or archive); its default is per recipe."""
    cache: str | None = None
    """Folder of the feature cache; ``<root>/features`` when unset."""
    shards: str | None = None
    """Folder or pattern of tar files to read utterances from instead of ``root``: ``KEY.wav`` (or
    flac, ogg, mp3) beside ``KEY.txt`` or ``KEY.json``. Mels are computed as they are read."""
    shuffle_buffer: int = 20_000
    """With ``shards``: utterances, of neighbouring tar files, that are mixed at a time."""
    num_utterances: int | None = None
    """Limit on the utterances made or used; all when unset."""
    variation: float = 0.0
    """Of the synthetic corpus, 0 to 1: how differently its utterances are said."""
    valid_fraction: float = 0.05
    """Share of texts held out; utterances with the same text stay on one side."""
    min_seconds: float = 0.2
    max_seconds: float = 20.0
    trim_db: float | None = 40.0
    """Trim leading and trailing silence this far below the peak; null keeps it."""
    num_workers: int = 0

    def __post_init__(self) -> None:
        _in_range("data", self, ("num_utterances", "shuffle_buffer"), 1)
        _in_range("data", self, ("variation",), 0, 1)
        _in_range("data", self, ("valid_fraction",), 0, 1, above=True, below=True)
        _in_range("data", self, ("min_seconds", "num_workers"), 0)
        _in_range("data", self, ("max_seconds",), 0, above=True, unlimited=True)
        _in_range("data", self, ("trim_db",), 0, above=True)
        if self.max_seconds <= self.min_seconds:
            raise ValueError(
                f"data.max_seconds must be > data.min_seconds = {self.min_seconds:g}, "
                f"got {self.max_seconds:g}"
            )


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
        _in_range("model", self, positive, 1)
        _in_range("model", self, ("encoder_conv_layers", "postnet_layers", "num_speakers"), 0)
        _in_range("model", self, ("dropout", "prenet_dropout"), 0, 1, below=True)
        _in_range("model", self, ("guided_layers", "guided_heads"), 1)
        _in_range("model", self, ("symbols_per_frame",), 0, above=True)
        for part, whole in (("guided_layers", "decoder_layers"), ("guided_heads", "num_heads")):
            got, most = getattr(self, part), getattr(self, whole)
            if got > most:
                raise ValueError(
                    f"model.{part} must be <= model.{whole} = {most}, got {got}; "
                    f"set model.{part}={most}"
                )
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
        _in_range("discriminator", self, ("width", "num_layers", "crop_steps"), 1)
        _in_range("discriminator", self, ("dropout",), 0, 1, below=True)
        _in_range("discriminator", self, ("lr",), 0, above=True)
        _in_range("discriminator", self, ("r1_weight",), 0)
        if not (self.use_hidden or self.use_outputs or self.use_alignments):
            raise ValueError(
                "discriminator.use_hidden, use_outputs and use_alignments are all false; "
                "set at least one to true"
            )


@dataclass
class MethodConfig:
    """Teacher forcing, or professor forcing: training on the model's own outputs.

    Professor forcing learns from a pool of free runs: by default from an expert, who says what
    should follow the frames that the model made; with ``weight`` from a discriminator (Lamb et al.
    2016, arXiv:1610.09038). ``through_time`` takes a free run in every step instead, with gradients
    through what it feeds back. docs/professor_forcing.md has the figures.
    """

    name: MethodName = MethodName.teacher_forcing
    weight: float = 0.0
    """C_f: free-running behaviour has to fool the discriminator; 0 is off."""
    teacher_weight: float = 0.0
    """C_t: teacher-forced behaviour made to look free-running; 0 is off."""
    matching_weight: float = 0.0
    """Of the distance between the discriminator's mean features of both behaviours; 0 is off."""
    imitation_weight: float = 1.0
    """Of what an expert would say next after each self-made prefix: the recording, re-timed by
    dynamic time warping; 0 is off. The gates do not concern it."""
    attention_weight: float = 0.0
    """Of attending, after each self-made prefix, to what the recording's own pass attends to at
    what comes next; 0 is off."""
    start_step: int = 1000
    """First step with free runs; the discriminator trains from here."""
    ramp_steps: int = 0
    """Steps over which the weights grow from 0 to their value."""
    interval: int = 1
    """Steps from one with these terms to the next; they then count as many times (lazy
    regularisation, Karras et al. 2020, arXiv:1912.04958, section 3.1)."""
    gate_low: float = 0.75
    """Below this EMA accuracy of the discriminator, its gradient does not reach the model."""
    gate_high: float = 0.97
    """Above it, the discriminator itself rests."""
    gate_decay: float = 0.9
    recompute_steps: int | None = None
    """Of ``through_time``: keep activations at every so many decoder steps only and compute those
    between anew in the backward pass; all are kept when unset."""

    def __post_init__(self) -> None:
        weights = ("weight", "teacher_weight", "matching_weight")
        expert = ("imitation_weight", "attention_weight")
        _in_range("method", self, (*weights, *expert, "start_step", "ramp_steps"), 0)
        _in_range("method", self, ("interval",), 1)
        _in_range("method", self, ("gate_low", "gate_high"), 0, 1)
        _in_range("method", self, ("gate_decay",), 0, 1, below=True)
        _in_range("method", self, ("recompute_steps",), 1)
        if self.gate_high < self.gate_low:
            raise ValueError(
                f"method.gate_high must be >= method.gate_low = {self.gate_low:g}, "
                f"got {self.gate_high:g}"
            )
        if self.name == MethodName.through_time and self.imitates:
            raise ValueError(
                "method.imitation_weight and method.attention_weight need a sample pool: they must "
                "be 0 with method.name=through_time"
            )
        if self.name != MethodName.teacher_forcing and not (self.judged or self.imitates):
            raise ValueError(
                f"method.name={self.name.value} learns nothing while all its weights are 0: set "
                "method.imitation_weight or method.weight, or take method=teacher_forcing"
            )

    @property
    def judged(self) -> bool:
        """A discriminator takes part."""
        return self.weight > 0 or self.teacher_weight > 0 or self.matching_weight > 0

    @property
    def imitates(self) -> bool:
        """An expert says what should follow the model's own frames."""
        return self.imitation_weight > 0 or self.attention_weight > 0


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
        _in_range("freerun", self, ("every", "pool_size", "batch_size"), 1)
        _in_range("freerun", self, ("ahead",), 0)
        _in_range("freerun", self, ("max_memory_mib",), 0, above=True, unlimited=True)
        _in_range("freerun", self, ("max_length_ratio",), 0, 100, above=True)
        _in_range("freerun", self, ("stop_threshold",), 0, 1, above=True, below=True)
        if not isinstance(self.ahead, str) and self.ahead >= self.every:
            raise ValueError(
                f"freerun.ahead must be < freerun.every = {self.every}, got {self.ahead}"
            )


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
        _in_range("trainer", self, positive, 1)
        _in_range("trainer", self, ("num_threads",), 1, 4096)
        _in_range("trainer", self, ("segment_steps", "max_frames"), 1)
        _in_range("trainer", self, ("lr", "guided_sigma", "stop_positive_weight"), 0, above=True)
        _in_range("trainer", self, ("clip_norm", "max_minutes"), 0, above=True, unlimited=True)
        _in_range("trainer", self, ("timeout_minutes",), 0, 10_000, above=True)
        _in_range(
            "trainer",
            self,
            ("min_lr", "weight_decay", "stop_weight", "guided_weight", "input_noise", "keep_best"),
            0,
        )
        _in_range("trainer", self, ("scheduled_sampling",), 0, 1)
        _in_range("trainer", self, ("ema_decay",), 0, 1, below=True)


@dataclass
class TrainConfig:
    """Everything one run depends on."""

    seed: int = 0
    device: str = "auto"
    """auto takes CUDA where it exists; or cpu, cuda, cuda:1, mps."""
    init_from: str | None = None
    """Run or checkpoint folder whose weights a new run starts from, as far as they fit; embeddings
    are taken by symbol and by speaker. Not looked at by ``--resume``."""
    mel: MelConfig = field(default_factory=MelConfig)
    text: TextConfig = field(default_factory=TextConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    freerun: FreerunConfig = field(default_factory=FreerunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, str) and self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        if self.method.name == MethodName.through_time and self.discriminator.use_alignments:
            raise ValueError(
                "discriminator.use_alignments must be false with method=through_time, "
                "which keeps no alignments"
            )

    @property
    def pool_batch_size(self) -> int:
        """Pool samples of a forced step."""
        return self.freerun.batch_size or max(1, self.trainer.batch_size // 2)

    @property
    def pool_max_frames(self) -> int | None:
        """Budget of a forced step's pool samples in frames: half of the recordings'."""
        frames = self.trainer.max_frames
        return None if frames is None else max(1, frames // 2)


@dataclass
class FaultConfig:
    """What passes for speech; a piece beyond one of these has failed (docs/sampling.md)."""

    max_skipped_symbols: int = 4
    """Neighbouring symbols that attention may pass over."""
    max_skipped_ratio: float = 1.5
    """Or this multiple of the piece's own usual advance, where one step passes several symbols."""
    max_hurry: float = 2.6
    """Over 0.2 s, this multiple of the piece's own mean pace, where that is more than the next."""
    max_symbols_per_s: float = 48.0
    """Pace over 0.2 s: three times that of fast speech."""
    max_astray_s: float = 0.18
    """Time that attention may spend off its way from the first symbol to the last."""
    max_hold_s: float = 0.8
    """Time on one symbol, or six times as long as the piece's own median."""
    max_tail_s: float = 0.8
    """Time on the last symbols."""
    min_on_way: float = 0.6
    """Mean share of attention that is on that way."""
    max_silence_s: float = 1.0
    """Of a pause within the piece."""
    quiet_deviations: float = 1.5
    """A frame is quiet if it is this many deviations of the training mels below their mean."""

    def __post_init__(self) -> None:
        _in_range("faults", self, ("max_skipped_symbols",), 1)
        _in_range("faults", self, ("max_skipped_ratio", "max_hurry"), 1, unlimited=True)
        _in_range("faults", self, ("max_symbols_per_s",), 0, above=True, unlimited=True)
        seconds = ("max_astray_s", "max_hold_s", "max_tail_s", "max_silence_s")
        _in_range("faults", self, seconds, 0, above=True, unlimited=True)
        _in_range("faults", self, ("min_on_way",), 0, 1)
        _in_range("faults", self, ("quiet_deviations",), -10, 10)


@dataclass
class SampleConfig:
    """Settings of ``profforce sample`` beside --run, --text, --input and --out."""

    seed: int = 0
    device: str = "auto"
    checkpoint: str = "last"
    """last, best, or a name such as step-2000."""
    batch_size: int = 32
    vocoder: VocoderKind = VocoderKind.griffin_lim
    vocoder_checkpoint: str | None = None
    """Weights of HiFi-GAN (the universal ones of the extra ``hifigan`` when unset) or Vocos."""
    griffin_lim_iterations: int = 60
    stop_threshold: float = 0.5
    max_seconds_per_symbol: float = 0.4
    """A free run ends after this much audio a symbol (and never before two seconds)."""
    min_seconds_per_symbol: float = 0.025
    """The stop head is not heard before this much audio a symbol: nobody speaks as fast."""
    tail_frames: int = 3
    """Mel frames kept after the stop, for the last sound to die away."""
    retries: int = 2
    """Other draws of the prenet's noise for a piece that failed; 0 takes what comes."""
    attention_window: int | None = 5
    """Then a last try with attention held to its way: at most so many symbols ahead of the last
    one, half as many back. No such try when unset."""
    precision: Precision = Precision.float32
    """Of the weights that generate."""
    faults: FaultConfig = field(default_factory=FaultConfig)
    max_symbols_per_piece: int = 200
    """Longer texts are spoken in pieces; choose about the longest text the run was trained on."""
    pause_s: float = 0.3
    """Silence between two sentences that were spoken as pieces; half of it after a clause."""
    paragraph_pause_s: float = 0.7
    chunk_s: float = 0.5
    """Of a stream: about so much audio at a time once it has begun; the first chunks are short."""
    num_threads: int | None = None
    pictures: bool = True
    speaker: str | None = None
    format: AudioFormat = AudioFormat.wav
    subtype: AudioSubtype = AudioSubtype.PCM_16
    sample_rate: int | None = None
    """Rate of the audio files in Hz; that of the run's mels when unset."""
    loudness_lufs: float | None = None
    """Integrated loudness (ITU-R BS.1770) to bring each file to; as it comes when unset."""

    def __post_init__(self) -> None:
        _in_range("sample", self, ("batch_size", "griffin_lim_iterations"), 1)
        _in_range("sample", self, ("num_threads",), 1, 4096)
        _in_range("sample", self, ("stop_threshold",), 0, 1, above=True, below=True)
        _in_range("sample", self, ("max_seconds_per_symbol",), 0, 60, above=True)
        _in_range("sample", self, ("min_seconds_per_symbol",), 0, 60)
        if self.min_seconds_per_symbol > self.max_seconds_per_symbol:
            raise ValueError(
                "sample.min_seconds_per_symbol must be <= sample.max_seconds_per_symbol = "
                f"{self.max_seconds_per_symbol:g}, got {self.min_seconds_per_symbol:g}"
            )
        _in_range("sample", self, ("tail_frames", "retries"), 0, 1000)
        _in_range("sample", self, ("attention_window",), 1)
        _in_range("sample", self, ("max_symbols_per_piece",), 20)
        _in_range("sample", self, ("pause_s", "paragraph_pause_s"), 0, 60)
        _in_range("sample", self, ("chunk_s",), 0, 60, above=True)
        _in_range("sample", self, ("sample_rate",), 4000, 192_000)
        _in_range("sample", self, ("loudness_lufs",), -70, 0)
        if self.format is AudioFormat.flac and self.subtype is AudioSubtype.FLOAT:
            raise ValueError("sample.subtype must be PCM_16 or PCM_24 for format=flac, got FLOAT")


@dataclass
class EvaluateConfig(SampleConfig):
    """Settings of ``profforce evaluate``: how the runs sample, and what is measured."""

    retries: int = 0
    """Retries would hide the failures of the first takes, which are what is measured."""
    attention_window: int | None = None
    num_utterances: int | None = None
    """At most so many texts. When unset, 32 held-out utterances, spread over their lengths, or all
    texts that are given."""
    pitch: bool = True
    """Compare the fundamental frequency with that of the recordings."""
    timing: bool = False
    """Write the real-time factor into the files too, which are then never the same twice."""
    listen: bool = False
    """Count the words that Whisper mishears (English; extra ``judges``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range("evaluate", self, ("num_utterances",), 1)


@dataclass
class BenchConfig:
    """Settings of ``profforce bench`` beside where the results go."""

    suite: str = "kernel"
    shapes: list[str] | None = None
    """Sizes as the suite writes them, such as ``[8x4x500x32]``; its own when unset."""
    forms: list[str] | None = None
    """Only these; all that the suite has when unset. What is derived from all is left out then."""
    device: str = "auto"
    dtype: BenchDtype = BenchDtype.float32
    threads: int | None = None
    """CPU threads of torch; its default when unset."""
    repeats: int = 10
    """Rounds that are counted; each takes every form once, in a new order."""
    warmup: int = 1
    """Rounds before those."""
    seed: int = 0
    peers: bool = False
    """Also other people's implementations, where they are installed."""
    memory: bool = True
    """Read each form's peak memory, on the CPU in a process of its own."""
    check: bool = True
    """Compare each form's results with a reference in float64."""
    budget: float = 0.05
    """Suite epoch: most of a step's time, on average, that generating samples may take."""
    max_uses: float = 1.0
    """Suite epoch: how often a generated sample is to be used at most."""

    def __post_init__(self) -> None:
        _in_range("bench", self, ("repeats", "threads"), 1)
        _in_range("bench", self, ("warmup",), 0)
        _in_range("bench", self, ("budget",), 0, 1, above=True, below=True)
        _in_range("bench", self, ("max_uses",), 0, above=True)


TRAINING_SUITES = ("train", "epoch")
"""Suites of the bench that take a :class:`TrainingBenchConfig`."""


@dataclass
class TrainingBenchConfig(BenchConfig):
    """Settings of a suite that times a training; no schema of Hydra, which composes each part."""

    training: TrainConfig = field(default_factory=TrainConfig)
    words: list[str] = field(default_factory=list)
    """Overrides that ``training`` was composed from, for the record."""
    from_corpus: bool = False
    """Take lengths from the corpus that ``training.data`` names instead of noise."""
