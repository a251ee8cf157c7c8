"""From text to audio with a trained run.

Shapes: B batch, S symbols, T mel frames, M mel channels, U decoder steps, N samples.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from profforce.audio.vocoder import Vocoder, build_vocoder
from profforce.config import MelConfig, SampleConfig
from profforce.errors import UserError, did_you_mean
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.models.metrics import alignment_coverage, mean_alignment
from profforce.models.mirror import FreeRun, Mirror
from profforce.models.transformer import TransformerTTS
from profforce.nn.device import choose_device
from profforce.nn.noise import PrenetNoise
from profforce.text.tokenizer import Tokenizer

MIN_LIMIT_S = 2.0
"""No utterance is cut off before this much audio, however short its text."""


@dataclass(frozen=True)
class Spoken:
    """One synthesised utterance."""

    text: str
    symbols: list[str]
    """What the model read, end-of-sentence included."""
    audio: Tensor
    """``[N]``, full scale 1.0."""
    mel: Tensor
    """``[T, M]``, natural-log amplitude."""
    alignment: Tensor
    """``[U, S]``, the clearest guided head."""
    stop_probability: Tensor
    """``[T]``"""
    stopped: bool
    """The stop head ended it; otherwise it ran into the limit of length."""
    seconds_spent: float
    """Its share of the computing time."""

    @property
    def coverage(self) -> float:
        """Share of the symbols that were attended."""
        return alignment_coverage(self.alignment)


class Synthesizer:
    """A model, its alphabet and a vocoder, ready to speak."""

    def __init__(
        self, model: TransformerTTS, meta: dict[str, Any], config: SampleConfig, vocoder: Vocoder
    ) -> None:
        self.model, self.config, self.vocoder = model, config, vocoder
        self.mel = MelConfig(**meta["mel"])
        self.tokenizer = Tokenizer.from_meta(meta["tokenizer"])
        self.speaker = _speaker_number(config.speaker, meta["speakers"])
        self.mirror = Mirror(model)

    @classmethod
    def from_run(cls, run: Path, config: SampleConfig | None = None) -> "Synthesizer":
        """Load a checkpoint of a training run.

        Raises:
            UserError: for a missing or foreign checkpoint, an unknown device, speaker or vocoder.
        """
        config = config or SampleConfig()
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        device = choose_device(config.device)
        path = find_checkpoint(run, config.checkpoint)
        model, meta = load_model(path, device)
        vocoder = build_vocoder(
            config.vocoder,
            MelConfig(**meta["mel"]),
            checkpoint=config.vocoder_checkpoint,
            iterations=config.griffin_lim_iterations,
            device=str(device),
        )
        try:
            return cls(model, meta, config, vocoder)
        except (KeyError, TypeError, ValueError, IndexError) as err:
            raise UserError(
                "checkpoint cannot be used",
                where=path,
                got=f"{type(err).__name__}: {err}",
                remedy="its meta.json is damaged; use another checkpoint",
            ) from err

    def check(self, text: str, where: str) -> list[int]:
        """Symbol numbers of ``text``; a :class:`UserError` saying ``where`` if unreadable."""
        try:
            return self.tokenizer.encode(text)
        except UserError as err:
            raise UserError(str(err), where=where) from err

    def synthesize(self, texts: Sequence[str]) -> Iterator[Spoken]:
        """Speak ``texts`` in order, ``batch_size`` at a time.

        The noise of the prenet depends on the seed and the text alone, so that an utterance does
        not change with its batch.

        Raises:
            UserError: before anything is made, if a text is empty or has unknown symbols.
        """
        encoded = [self.check(text, f"text {n}") for n, text in enumerate(texts, 1)]
        size = self.config.batch_size
        for start in range(0, len(texts), size):
            group = slice(start, start + size)
            yield from self._batch(texts[group], encoded[group])

    def _batch(self, texts: Sequence[str], encoded: Sequence[list[int]]) -> Iterator[Spoken]:
        began = time.perf_counter()
        run = self._free_run(texts, encoded)
        share = (time.perf_counter() - began) / len(texts)
        factor = self.model.config.reduction_factor
        for i, (text, numbers) in enumerate(zip(texts, encoded, strict=True)):
            began = time.perf_counter()
            frames = int(run.lengths[i])
            mel = run.mel[i, :frames]
            audio = self.vocoder(mel).cpu()
            heads = run.alignments[i, :, : -(-frames // factor), : len(numbers)]
            yield Spoken(
                text=text,
                symbols=[self.tokenizer.symbols[n] for n in numbers],
                audio=audio,
                mel=mel.cpu(),
                alignment=mean_alignment(heads).cpu(),
                stop_probability=run.stop_probability[i, :frames].cpu(),
                stopped=bool(run.stopped[i]),
                seconds_spent=share + time.perf_counter() - began,
            )

    def _free_run(self, texts: Sequence[str], encoded: Sequence[list[int]]) -> FreeRun:
        device = self.model.mel_mean.device
        symbols = pad_sequence([torch.tensor(row) for row in encoded], batch_first=True)
        lengths = torch.tensor([len(row) for row in encoded])
        rate = self.mel.sample_rate / self.mel.hop_length
        seconds = (lengths * self.config.max_seconds_per_symbol).clamp(min=MIN_LIMIT_S)
        identities = torch.tensor([_identity(self.tokenizer.normalize(t)) for t in texts])
        return self.mirror.free_run(
            symbols.to(device),
            lengths.to(device),
            (seconds * rate).ceil().long().to(device),
            noise=PrenetNoise(self.config.seed, identities.to(device)),
            speakers=torch.full((len(texts),), self.speaker, device=device),
            stop_threshold=self.config.stop_threshold,
        )


def _identity(text: str) -> int:
    """A 32-bit identity of a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def _speaker_number(name: str | None, speakers: Sequence[str]) -> int:
    if name is None:
        return 0
    if name not in speakers:
        if not speakers:
            raise UserError(
                "this model has no speakers", got=f"speaker={name}", remedy="leave it out"
            )
        known = ", ".join(speakers[:10])
        raise UserError(
            f"no speaker '{name}'" + did_you_mean(name, speakers), where="speaker", expected=known
        )
    return list(speakers).index(name)
