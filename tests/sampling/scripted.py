"""A model whose free run is written down: perfect speech, or one fault in the attempts named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from profforce.config import MelConfig, ModelConfig, SampleConfig, TextConfig
from profforce.models.free_run import FreeRun
from profforce.models.mirror import Mirror, MirrorState, StepOutput
from profforce.models.transformer import TransformerTTS
from profforce.sampling.request import Request
from profforce.sampling.script import Part, Scripter
from profforce.sampling.takes import Taker
from profforce.text.tokenizer import Tokenizer

MEL = MelConfig(
    sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000.0, num_mels=20
)
STEPS_A_SYMBOL = 2
SPOILS = ("skip", "repeat", "hang", "wander", "early", "blip", "deaf", "nan", "mute")
Spoilt = Callable[[int, bool], bool]
"""Whether an attempt fails: of this identity, held to its way or not."""


class ScriptedMirror(Mirror):
    """Two decoder steps a symbol, then the end, unless ``spoilt`` says otherwise."""

    def __init__(self, model: TransformerTTS, spoil: str, spoilt: Spoilt) -> None:
        super().__init__(model)
        self.spoil, self.spoilt = spoil, spoilt
        self.runs: list[list[int]] = []
        """Identities of each free run."""

    def free_run(self, *args: Any, **options: Any) -> FreeRun:
        self.runs.append(options["noise"].utterances.tolist())
        return super().free_run(*args, **{**options, "plain": True})

    def step(self, state: MirrorState) -> tuple[StepOutput, MirrorState]:
        assert state.noise is not None
        live = state.memories[0].mask[:, 0, 0]
        frames = self.model.config.reduction_factor
        mel = torch.zeros(len(live), frames, self.model.num_mels)
        stop = torch.full((len(live), frames), -6.0)
        attention = torch.zeros(live.shape)
        for row, identity in enumerate(state.noise.utterances.tolist()):
            num_symbols = int(live[row].sum())
            spoil = self.spoil if self.spoilt(identity, state.window is not None) else ""
            self._row(state.t, num_symbols, spoil, mel[row], stop[row], attention[row])
        alignments = attention[:, None].expand(-1, 4, -1)
        hidden = torch.zeros(len(live), self.model.config.width)
        return StepOutput(mel, stop, alignments, hidden), replace(state, t=state.t + 1)

    def _row(
        self, t: int, num_symbols: int, spoil: str, mel: Tensor, stop: Tensor, attention: Tensor
    ) -> None:
        half = num_symbols // 2
        script = [s for s in range(num_symbols) for _ in range(STEPS_A_SYMBOL)]
        middle = script.index(half)
        if spoil == "skip":
            script = script[:middle] + [s for s in script if s > half + 8]
        elif spoil == "repeat":
            script = script[:middle] + [s for s in script if s >= half - 8]
        elif spoil == "hang":
            script = script[:middle] + [half] * 60 + script[middle:]
        end = len(script) if spoil != "early" else middle
        deaf = spoil in ("deaf", "wander")
        at = script[t] if t < len(script) else num_symbols - 1
        if spoil == "wander" and t >= len(script):
            at = (t // 6 * 11) % num_symbols
        attention[at] = 1.0
        if (t >= end - 1 and not deaf) or (spoil == "blip" and t == middle):
            stop[:] = 6.0
        if spoil == "mute":
            mel[:] = -5.0
        if spoil == "nan" and t == middle:
            mel[:] = float("nan")


def scripted(spoil: str, spoilt: Spoilt, **changes: Any) -> tuple[Taker, ScriptedMirror, Scripter]:
    """A taker whose model is scripted, its mirror, and what makes its parts."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(TextConfig())
    config = ModelConfig(
        width=8,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=2,
        feedforward_width=8,
        prenet_width=8,
        postnet_layers=0,
    )
    model = TransformerTTS(config, len(tokenizer.symbols), MEL.num_mels)
    model.set_mel_statistics(torch.full((20,), -4.0), torch.full((20,), 1.5))
    settings = SampleConfig(device="cpu", max_seconds_per_symbol=0.12, **changes)
    taker = Taker(model, tokenizer.symbols, MEL, settings)
    mirror = ScriptedMirror(model, spoil, spoilt)
    taker.mirror = taker.held_mirror = mirror
    return taker, mirror, Scripter(tokenizer, (), max_symbols=200)


def parts_of(scripter: Scripter, texts: list[str]) -> list[Part]:
    """One part a text."""
    return [part for text in texts for part in scripter(Request(text, "text")).parts]
