"""A free run of one utterance some steps at a time: frames as they are made, and refined.

The engine's state is kept from call to call, so that the frames are those of the run in one go.

Shapes: S symbols, T mel frames, R reduction factor, n decoder steps or frames at a time, M mel
channels, G guided heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Conv1d

from profforce.models import native, native_rows
from profforce.models.free_run import Outputs
from profforce.models.mirror import Mirror
from profforce.nn.noise import PrenetNoise

DEAF = 2.0
"""A stop threshold that no probability exceeds: who listens decides where it ends."""


@dataclass(frozen=True)
class Steps:
    """Some decoder steps of one utterance."""

    frames: Tensor
    """``[n R, M]``, normalised, before the postnet."""
    stop_probability: Tensor
    """``[n R]``"""
    alignments: Tensor
    """``[G, n, S]``"""


class FrameStream:
    """Takes the decoder's steps for one utterance, until there are ``max_steps``."""

    def __init__(
        self,
        mirror: Mirror,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_steps: int,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
        precision: str = "float32",
    ) -> None:
        """Encode the text; ``symbols [1, S]``, the rest as in :meth:`Mirror.free_run`."""
        model = mirror.model
        self.max_steps, self.num_steps = max_steps, 0
        self._mirror, self._runner = mirror, None
        if native.obstacle(model) is None:
            self._outputs = Outputs.allocate(model, symbols, max_steps, alignments=True)
            self._runner = native.prepare(
                model,
                symbols,
                symbol_lengths,
                torch.tensor([max_steps * model.config.reduction_factor]),
                self._outputs,
                noise=noise,
                speakers=speakers,
                stop_threshold=DEAF,
                precision=precision,
            )
        else:
            self._state = mirror.start(
                symbols, symbol_lengths, max_steps, noise=noise, speakers=speakers
            )

    def advance(self, num_steps: int) -> Steps:
        """The next ``num_steps``, 1 or more, or as many as are left."""
        begin, end = self.num_steps, min(self.num_steps + num_steps, self.max_steps)
        self.num_steps = end
        if self._runner is None:
            return self._by_modules(end - begin)
        self._runner.advance(end - begin)
        made, rate = self._outputs, self._outputs.frames_a_step
        frames = slice(begin * rate, end * rate)
        return Steps(made.mel[0, frames], made.stop[0, frames], made.alignments[0, :, begin:end])

    def _by_modules(self, num_steps: int) -> Steps:
        made = []
        for _ in range(num_steps):
            output, self._state = self._mirror.step(self._state)
            made.append(output)
        return Steps(
            torch.cat([output.frames[0] for output in made]),
            torch.cat([output.stop_logits[0].sigmoid() for output in made]),
            torch.stack([output.alignments[0] for output in made], 1),
        )


class RefineStream:
    """The postnet on frames of one utterance as they come, in natural-log amplitude.

    Each window is refined with as many frames around it as the convolutions see.
    """

    def __init__(self, mirror: Mirror) -> None:
        model = mirror.model
        self._mirror = mirror
        self._native = native.obstacle(model) is None
        kernels = [conv.kernel_size[0] for conv in model.postnet.convs if isinstance(conv, Conv1d)]
        self._halo = sum(kernel // 2 for kernel in kernels)
        self._kept = model.mel_mean.new_zeros(0, model.num_mels)
        """Frames that have come out and are still seen, then those that have not."""
        self._done = 0

    @property
    def delay(self) -> int:
        """Frames that are waited for before one comes out."""
        return self._halo

    def push(self, frames: Tensor, last: bool) -> Tensor:
        """``[k, M]`` refined frames that are known with ``frames [n, M]``; all of them if last."""
        model = self._mirror.model
        kept = torch.cat([self._kept, frames])
        ready = len(kept) if last else max(len(kept) - self._halo, self._done)
        if ready == self._done:
            self._kept = kept
            return kept[:0]
        lengths = torch.tensor([len(kept)], device=kept.device)
        if self._native:
            refined = native_rows.refine(model, kept[None], lengths)[0]
        else:
            refined = self._mirror.refine(kept[None], lengths)[0]
        made = model.denormalize(refined[self._done : ready])
        drop = max(ready - self._halo, 0)
        self._kept, self._done = kept[drop:], ready - drop
        return made
