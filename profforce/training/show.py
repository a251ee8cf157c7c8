"""What a person looks at and listens to during training: free-running beside teacher-forced."""

import logging
import shutil
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

from profforce.audio.files import write_audio
from profforce.audio.pictures import Behaviour, draw_comparison, save_figure
from profforce.audio.vocoder import build_vocoder
from profforce.config import VocoderKind
from profforce.data.corpus import Corpus
from profforce.training.gap import Reading, alignment_of

BOARD_MIB = 512
"""Size of the TensorBoard files from which they get scalars alone: some 250 readings."""
KEPT_READINGS = 50
"""Newest readings whose files stay in ``samples/``: some 100 MiB."""
log = logging.getLogger(__name__)


def show_reading(
    reading: Reading, step: int, run_dir: Path, board: SummaryWriter, corpus: Corpus, factor: int
) -> None:
    """Write audio and pictures to TensorBoard and to ``run_dir/samples/step-N``; old ones go.

    Args:
        reading: both passes over the fixed sentences.
        step: number of the step.
        run_dir: folder of the run.
        board: TensorBoard writer.
        corpus: gives the mel definition and the alphabet.
        factor: R, mel frames a decoder step.
    """
    vocoder = build_vocoder(VocoderKind.griffin_lim, corpus.mel)
    roomy = board_has_room(board, run_dir)
    if not roomy:
        log.info("TensorBoard has its share of sounds: those of step %d lie in samples/ only", step)
    folder = run_dir / "samples" / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    rate = corpus.mel.sample_rate
    for i, text in enumerate(reading.batch.texts):
        pair = behaviours(reading, i, factor)
        for behaviour in pair:
            audio = vocoder(torch.as_tensor(behaviour.mel))
            write_audio(folder / f"{i}-{behaviour.name}.wav", audio, rate)
            if roomy:
                board.add_audio(f"{i}/{behaviour.name}", audio.clamp(-1, 1)[None], step, rate)
        symbols = reading.batch.symbols[i, : int(reading.batch.symbol_lengths[i])].tolist()
        figure = draw_comparison(
            *pair,
            symbols=[corpus.tokenizer.symbols[n] for n in symbols],
            title=f"step {step}: {text}",
            mel_config=corpus.mel,
            reduction_factor=factor,
        )
        save_figure(figure, folder / f"{i}.png")
        if roomy:
            board.add_figure(f"{i}/comparison", figure, step, close=False)
    forget_old(run_dir)


def forget_old(run_dir: Path) -> None:
    """Remove ``samples/step-N`` beyond the newest, but for those of steps with a checkpoint."""
    found = [p for p in (run_dir / "samples").glob("step-*") if p.name[5:].isdecimal()]
    found.sort(key=lambda path: int(path.name[5:]))
    for path in found[:-KEPT_READINGS]:
        if not (run_dir / "checkpoints" / path.name).is_dir():
            shutil.rmtree(path, ignore_errors=True)


def board_has_room(board: SummaryWriter, run_dir: Path) -> bool:
    """Whether the run's TensorBoard files may take more than scalars."""
    board.flush()
    size = sum(file.stat().st_size for file in (run_dir / "tb").glob("events.*"))
    return size < BOARD_MIB * 2**20


def behaviours(reading: Reading, i: int, factor: int) -> tuple[Behaviour, Behaviour]:
    """Utterance ``i`` teacher-forced and free-running, without padding; ``factor`` is R."""
    forced, free = reading.teacher_forced, reading.free_running
    frames, made = int(reading.batch.mel_lengths[i]), int(free.lengths[i])
    symbols = int(reading.batch.symbol_lengths[i])
    return (
        Behaviour(
            "teacher_forced",
            forced.mel[i, :frames].cpu(),
            alignment_of(forced.alignments[i], frames, symbols, factor).cpu(),
            forced.stop_logits[i, :frames].sigmoid().cpu(),
        ),
        Behaviour(
            "free_running",
            free.mel[i, :made].cpu(),
            alignment_of(free.alignments[i], made, symbols, factor).cpu(),
            free.stop_probability[i, :made].cpu(),
        ),
    )
