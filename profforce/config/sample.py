"""How a run is sampled."""

from dataclasses import dataclass, field
from enum import StrEnum

from profforce.config.checks import in_range
from profforce.config.faults import FaultConfig
from profforce.config.precision import Precision


class VocoderKind(StrEnum):
    """From mel to audio: built in, or weights of HiFi-GAN or Vocos."""

    griffin_lim = "griffin_lim"
    hifigan = "hifigan"
    vocos = "vocos"


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
    """Longer texts are spoken in pieces; choose about the longest text the run was trained on.
    Every piece takes the memory of the longest."""
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
        in_range("sample", self, ("batch_size",), 1)
        in_range("sample", self, ("griffin_lim_iterations", "attention_window"), 1, 10_000)
        in_range("sample", self, ("num_threads",), 1, 4096)
        in_range("sample", self, ("stop_threshold",), 0, 1, above=True, below=True)
        in_range("sample", self, ("max_seconds_per_symbol",), 0, 60, above=True)
        in_range("sample", self, ("min_seconds_per_symbol",), 0, 60)
        if self.min_seconds_per_symbol > self.max_seconds_per_symbol:
            raise ValueError(
                "sample.min_seconds_per_symbol must be <= sample.max_seconds_per_symbol = "
                f"{self.max_seconds_per_symbol:g}, got {self.min_seconds_per_symbol:g}"
            )
        in_range("sample", self, ("tail_frames", "retries"), 0, 1000)
        in_range("sample", self, ("max_symbols_per_piece",), 20, 2000)
        in_range("sample", self, ("pause_s", "paragraph_pause_s"), 0, 60)
        in_range("sample", self, ("chunk_s",), 0, 60, above=True)
        in_range("sample", self, ("sample_rate",), 4000, 192_000)
        in_range("sample", self, ("loudness_lufs",), -70, 0)
        if self.format is AudioFormat.flac and self.subtype is AudioSubtype.FLOAT:
            raise ValueError("sample.subtype must be PCM_16 or PCM_24 for format=flac, got FLOAT")
