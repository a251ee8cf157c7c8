"""What a person looks at and listens to during training."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from profforce.audio.vocoder import build_vocoder
from profforce.audio.files import write_audio
from profforce.config import VocoderKind
from profforce.data.corpus import Corpus
from profforce.training.gap import Reading


def show_reading(
    reading: Reading, step: int, run_dir: Path, board: SummaryWriter, corpus: Corpus
) -> None:
    """Free-running beside teacher-forced: audio and pictures, in TensorBoard and ``samples/``."""
    vocoder = build_vocoder(VocoderKind.griffin_lim, corpus.mel)
    folder = run_dir / "samples" / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(len(reading.batch)):
        free = reading.free_running.mel[i, : int(reading.free_running.lengths[i])]
        write_audio(folder / f"{i}-free_running.wav", vocoder(free.cpu()), corpus.mel.sample_rate)
