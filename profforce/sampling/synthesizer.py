"""From text to audio with a trained run.

Shapes: B batch, S symbols, T mel frames, M mel channels, U decoder steps, N samples.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, overload

import torch

from profforce.audio.vocoder import Vocoder, build_vocoder
from profforce.config import MelConfig, Precision, SampleConfig, VocoderKind
from profforce.errors import UserError, did_you_mean
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.models.metrics import mean_alignment
from profforce.models.tts import TTSModel
from profforce.nn.device import choose_device
from profforce.sampling.request import Request, requests_of
from profforce.sampling.script import Part, Script, Scripter
from profforce.sampling.speech import Speech, speech_of
from profforce.sampling.spoken import Pauses, Spoken, SpokenPart, assemble
from profforce.sampling.stream import Chunk, SpeechStream
from profforce.sampling.takes import Taken, Taker
from profforce.text.tokenizer import Tokenizer


class Synthesizer:
    """A model, its alphabet and a vocoder, ready to speak.

    :meth:`from_run` loads one, :meth:`speak` and :meth:`stream` use it.
    """

    def __init__(
        self, model: TTSModel, meta: dict[str, Any], config: SampleConfig, vocoder: Vocoder
    ) -> None:
        """From parts; ``meta`` is that of the checkpoint."""
        self.model, self.config, self.vocoder, self._meta = model, config, vocoder, meta
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
    def from_run(
        cls,
        run: str | Path,
        config: SampleConfig | None = None,
        *,
        checkpoint: str | None = None,
        device: str | None = None,
        vocoder: str | None = None,
        vocoder_checkpoint: str | Path | None = None,
        precision: str | None = None,
    ) -> "Synthesizer":
        """Load a checkpoint of a training run.

        Args:
            run: its folder.
            config: settings as of ``profforce sample``; the defaults when None. What is given
                below takes precedence.
            checkpoint: ``last``, ``best``, or a name such as ``step-2000``.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
            vocoder: ``griffin_lim``, ``hifigan`` or ``vocos``.
            vocoder_checkpoint: weights for it.
            precision: of the weights that generate: ``float32``, ``bfloat16``, ``int8``, ``auto``.

        Raises:
            UserError: for a missing or foreign checkpoint, an unknown device, speaker or vocoder.
        """
        given: dict[str, Any] = {
            "checkpoint": checkpoint,
            "device": device,
            "vocoder": None if vocoder is None else chosen(VocoderKind, "vocoder", vocoder),
            "vocoder_checkpoint": vocoder_checkpoint and str(vocoder_checkpoint),
            "precision": None if precision is None else chosen(Precision, "precision", precision),
        }
        changes = {name: value for name, value in given.items() if value is not None}
        config = replace(config or SampleConfig(), **changes)
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        place = choose_device(config.device)
        path = find_checkpoint(Path(run), config.checkpoint)
        model, meta = load_model(path, place)
        voice = build_vocoder(
            config.vocoder,
            MelConfig(**meta["mel"]),
            checkpoint=config.vocoder_checkpoint,
            iterations=config.griffin_lim_iterations,
            device=str(place),
        )
        try:
            return cls(model, meta, config, voice)
        except (KeyError, TypeError, ValueError, IndexError) as err:
            raise UserError(
                "checkpoint cannot be used",
                where=path,
                got=f"{type(err).__name__}: {err}",
                remedy="its meta.json is damaged; use another checkpoint",
            ) from err

    @property
    def sample_rate(self) -> int:
        """Of the audio, in Hz."""
        return self.config.sample_rate or self.mel.sample_rate

    @property
    def speakers(self) -> list[str]:
        """Names for ``speaker``; empty for a model of one voice."""
        return list(self.script.speakers)

    @overload
    def speak(self, text: str, *, seed: int | None = ..., speaker: str | None = ...) -> Speech: ...

    @overload
    def speak(
        self,
        text: list[str] | tuple[str, ...],
        *,
        seed: int | None = ...,
        speaker: str | None = ...,
    ) -> list[Speech]: ...

    def speak(
        self,
        text: str | list[str] | tuple[str, ...],
        *,
        seed: int | None = None,
        speaker: str | None = None,
    ) -> Speech | list[Speech]:
        """Speak a text, or several, which is faster than one after the other.

        Args:
            text: of any length; long ones are spoken in pieces.
            seed: of the noise; that of the settings when None.
            speaker: its name; that of the settings when None.

        Returns:
            A :class:`Speech` for a text, a list of them for a list.

        Raises:
            UserError: before anything is made, if a text cannot be spoken or there is no such
                speaker.
        """
        voice = self.with_settings(seed=seed, speaker=speaker)
        texts = [text] if isinstance(text, str) else text
        made = [voice._speech(spoken) for spoken in voice.synthesize(texts)]
        return made[0] if isinstance(text, str) else made

    def stream(
        self, text: str | Request, *, seed: int | None = None, speaker: str | None = None
    ) -> Iterator[Chunk]:
        """Speak a text of any length bit by bit: chunks of audio as they are made.

        The first one comes after some frames; memory does not grow with the text. The frames are
        those of :meth:`speak` without retries: what is out cannot be tried again, and faults are
        reported at the end of each piece and in the last chunk's warnings.

        Args: as of :meth:`speak`.

        Raises:
            UserError: at once, if the text cannot be spoken, there is no such speaker, or a setting
                needs the whole audio.
        """
        voice = self.with_settings(seed=seed, speaker=speaker)
        request = Request(text, "text") if isinstance(text, str) else text
        return iter(voice.stream_script(voice.script(request)))

    def stream_script(self, script: Script) -> SpeechStream:
        """The chunks of ``script``."""
        return SpeechStream(self.take, self.vocoder, self.pauses, script)

    def with_settings(self, **changes: Any) -> "Synthesizer":
        """The same model and vocoder with other settings; None leaves one as it is."""
        changes = {name: value for name, value in changes.items() if value is not None}
        if not changes:
            return self
        config = replace(self.config, **changes)
        return Synthesizer(self.model, self._meta, config, self.vocoder)

    def synthesize(self, texts: Iterable[str | Request]) -> Iterator[Spoken]:
        """Speak ``texts`` in order.

        Raises:
            UserError: before anything is made, if a text cannot be spoken.
        """
        yield from self.speak_scripts([self.script(request) for request in requests_of(texts)])

    def speak_scripts(self, scripts: Sequence[Script]) -> Iterator[Spoken]:
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

    def _speech(self, spoken: Spoken) -> Speech:
        rate = self.mel.sample_rate
        frame_s = self.mel.hop_length / rate
        return speech_of(spoken, self.config, sample_rate=rate, frame_s=frame_s)

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


Choice = TypeVar("Choice", bound=StrEnum)


def chosen(kind: type[Choice], name: str, value: str) -> Choice:
    """The member of ``kind`` called ``value``; UserError naming the setting if there is none."""
    try:
        return kind(value)
    except ValueError as err:
        known = [str(member) for member in kind]
        raise UserError(
            f"unknown {name} '{value}'" + did_you_mean(value, known),
            where=name,
            expected=f"one of {', '.join(known)}",
        ) from err
