"""From text to audio with a trained run.

Shapes: B batch, S symbols, T mel frames, M mel channels, U decoder steps, N samples.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from profforce.audio.vocoder import Vocoder, build_vocoder
from profforce.config import MelConfig, SampleConfig
from profforce.errors import UserError
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.models.metrics import mean_alignment
from profforce.models.tts import TTSModel
from profforce.nn.device import choose_device
from profforce.sampling.request import Request
from profforce.sampling.script import Part, Script, Scripter
from profforce.sampling.spoken import Pauses, Spoken, SpokenPart, assemble
from profforce.sampling.takes import Taken, Taker
from profforce.text.tokenizer import Tokenizer


class Synthesizer:
    """A model, its alphabet and a vocoder, ready to speak."""

    def __init__(
        self, model: TTSModel, meta: dict[str, Any], config: SampleConfig, vocoder: Vocoder
    ) -> None:
        self.model, self.config, self.vocoder = model, config, vocoder
        self.mel = MelConfig(**meta["mel"])
        self.tokenizer = Tokenizer.from_meta(meta["tokenizer"])
        self.script = Scripter(
            self.tokenizer,
            meta["speakers"],
            max_symbols=config.max_symbols_per_piece,
            speaker=config.speaker,
        )
        self.take = Taker(model, self.tokenizer.symbols, self.mel, config)
        self.pauses = Pauses(config.pause_s, config.paragraph_pause_s)

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

    def synthesize(self, texts: Iterable[str | Request]) -> Iterator[Spoken]:
        """Speak ``texts`` in order.

        Raises:
            UserError: before anything is made, if a text cannot be spoken.
        """
        requests = (
            Request(text, f"text {number}") if isinstance(text, str) else text
            for number, text in enumerate(texts, 1)
        )
        yield from self.speak([self.script(request) for request in requests])

    def speak(self, scripts: Sequence[Script]) -> Iterator[Spoken]:
        """Speak ``scripts`` in order, ``batch_size`` pieces at a time, whosesoever they are.

        On a CPU the audio of a text depends on the text, the run and the settings alone: to the
        bit the same in every batch, order and number of threads.
        """
        parts = [part for script in scripts for part in script.parts]
        size = self.config.batch_size
        batches = (parts[start : start + size] for start in range(0, len(parts), size))
        spoken = (part for batch in batches for part in self._batch(batch))
        for script in scripts:
            pieces = [next(spoken) for _ in script.parts]
            yield assemble(script, pieces, self.pauses, self.mel)

    def _batch(self, parts: Sequence[Part]) -> list[SpokenPart]:
        began = time.perf_counter()
        spoken = self._voices(parts, self.take(parts))
        spent = time.perf_counter() - began
        frames = sum(len(part.mel) for part in spoken)
        return [replace(part, seconds_spent=spent * len(part.mel) / frames) for part in spoken]

    def _voices(self, parts: Sequence[Part], takes: Sequence[Taken]) -> list[SpokenPart]:
        if self.model.mel_mean.device.type != "cpu":
            return [self._voice(part, taken) for part, taken in zip(parts, takes, strict=True)]
        # A thread a piece: the order of sums within one must not depend on how many there are.
        workers = min(len(takes), torch.get_num_threads())
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(self._voice, parts, takes))

    def _voice(self, part: Part, taken: Taken) -> SpokenPart:
        return SpokenPart(
            text=part.text,
            gap=part.gap,
            symbols=[self.tokenizer.symbols[n] for n in part.numbers],
            audio=self.vocoder(taken.mel).cpu(),
            mel=taken.mel.cpu(),
            alignment=mean_alignment(taken.alignments).cpu(),
            stop_probability=taken.stop_probability.cpu(),
            stopped_by=taken.stopped_by,
            faults=taken.faults,
            retries=taken.retries,
            held=taken.held,
        )
