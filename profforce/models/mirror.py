"""The recurrent mirror: the batch model seen as a recurrence, for free-running.

A mirror holds references to the batch model's own modules and nothing else, so that parameters
and buffers are one storage by construction, whatever happens to them: optimizer steps,
``load_state_dict`` (also ``assign=True``), ``.to``, deepcopy. It is no ``nn.Module`` and appears
in no ``state_dict``.

Shapes: B batch, S symbols, T mel frames, R reduction factor, U decoder steps, M mel channels,
G guided heads.
"""

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from profforce.config import Precision
from profforce.kernels import free_run as kernel
from profforce.models import graphs, native, native_rows
from profforce.models.free_run import FreeRun, Outputs, Refine
from profforce.models.graph_machine import CaptureError
from profforce.models.mirror_state import MirrorState as MirrorState
from profforce.models.mirror_state import StepOutput as StepOutput
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TTSModel
from profforce.nn.attention import AttentionWindow
from profforce.nn.masks import length_mask
from profforce.nn.modes import evaluating
from profforce.nn.noise import PrenetNoise

log = logging.getLogger(__name__)

COMPACT_EVERY = 8
"""Steps between looks at which utterances are done."""


class Mirror:
    """Recurrent view of a :class:`TTSModel`. All methods run under ``no_grad``."""

    def __init__(self, model: TTSModel) -> None:
        self.model = model

    @torch.no_grad()
    def start(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_steps: int,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
    ) -> MirrorState:
        """Encode the text and allocate the state for at most ``max_steps`` decoder steps."""
        with evaluating(self.model):
            return self.model.start(
                symbols, symbol_lengths, max_steps, noise=noise, speakers=speakers
            )

    @torch.no_grad()
    def step(self, state: MirrorState) -> tuple[StepOutput, MirrorState]:
        """One decoder step on the state's own last frames; updates the layers' state in place.

        To force frames instead, pass ``dataclasses.replace(state, frames=...)``.
        """
        with evaluating(self.model):
            return self.model.step(state)

    @torch.no_grad()
    def free_run(
        self,
        symbols: Tensor,
        symbol_lengths: Tensor,
        max_frames: Tensor,
        *,
        noise: PrenetNoise | None = None,
        speakers: Tensor | None = None,
        stop_threshold: float = 0.5,
        refine: bool = True,
        alignments: bool = True,
        precision: str = "float32",
        plain: bool = False,
        window: AttentionWindow | None = None,
    ) -> FreeRun:
        """Generate a batch of utterances until each stops or reaches its ``max_frames``.

        The fastest engine that knows the model's layers makes the frames; they are the same, within
        rounding, as those of :meth:`step`.

        Args:
            symbols: ``[B, S]`` int64.
            symbol_lengths: ``[B]`` int64.
            max_frames: ``[B]`` int64, at least 1 each.
            noise: key of the prenet's dropout; None switches it off.
            speakers: ``[B]`` int64.
            stop_threshold: probability above which a frame is the last one.
            refine: run the postnet; otherwise ``mel`` is the same as ``mel_before``.
            alignments: keep the guided heads' attention.
            precision: of the decoder's weights: float32, bfloat16 or int8, where an engine has it.
            plain: step through the modules themselves, whatever the engines can do.
            window: hold the guided heads to it; the modules themselves step then.
        """
        frames = self.model.config.reduction_factor
        max_steps = -(-int(max_frames.max()) // frames)
        own = plain or window is not None
        engine, reason = (None, "") if own else _engine(self.model)
        natural = engine is native.run_native and not refine
        out = Outputs.allocate(
            self.model, symbols, max_steps, alignments=alignments, natural=natural
        )
        if engine is not None:
            try:
                engine(
                    self.model,
                    symbols,
                    symbol_lengths,
                    max_frames,
                    out,
                    noise=noise,
                    speakers=speakers,
                    stop_threshold=stop_threshold,
                    precision=precision,
                )
            except CaptureError as err:
                engine, reason = None, str(err)
        if engine is None:
            if not own:  # who asks for it knows
                _say_once(reason, precision)
            state = self.start(symbols, symbol_lengths, max_steps, noise=noise, speakers=speakers)
            self._run(state.within(window), out, max_frames, stop_threshold)
        postnet: Refine = self.refine
        if engine is native.run_native:
            postnet = functools.partial(native_rows.refine, self.model)
        return out.finish(self.model, postnet if refine else None)

    @torch.no_grad()
    def refine(self, before: Tensor, lengths: Tensor) -> Tensor:
        """The postnet on normalised frames ``[B, T, M]`` of ``lengths [B]``."""
        with evaluating(self.model):
            return self.model.refine(before, length_mask(lengths, before.shape[1]))

    def _run(
        self, state: MirrorState, out: Outputs, max_frames: Tensor, stop_threshold: float
    ) -> None:
        """Step through the modules; utterances that ended leave the batch now and then."""
        rows = torch.arange(len(out.lengths), device=out.lengths.device)
        steps = out.mel.shape[1] // out.frames_a_step
        while state.t < steps and len(rows):
            t = state.t
            step, state = self.step(state)
            here = slice(t * out.frames_a_step, (t + 1) * out.frames_a_step)
            probability = step.stop_logits.sigmoid()
            out.mel[rows, here] = step.frames
            out.stop[rows, here] = probability
            if out.alignments.shape[1]:
                out.alignments[rows, :, t] = step.alignments
            out.end(t, rows, probability, max_frames, stop_threshold)
            if (t + 1) % COMPACT_EVERY == 0:
                alive = (out.lengths[rows] == 0).nonzero()[:, 0]
                if len(alive) < len(rows):
                    rows, state = rows[alive], state.select(alive)


def resolve_precision(precision: Precision, model: TTSModel) -> str:
    """The precision of ``free_run`` that ``precision`` stands for, on the model's device."""
    if precision is not Precision.auto:
        return precision.value
    if model.mel_mean.device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = native.obstacle(model) is None and kernel.is_fast("bfloat16")
    chosen = "bfloat16" if fast else "float32"
    _say_choice(chosen)
    return chosen


@functools.cache
def _say_choice(precision: str) -> None:
    log.info("free-running with weights in %s", precision)


def _engine(model: TTSModel) -> tuple[Callable[..., None] | None, str]:
    """The engine of the model's device, or None and why it cannot run the model."""
    if not isinstance(model, TransformerTTS):
        return None, f"the engines know the Transformer alone, this is {model.config.kind}"
    no_graphs = graphs.obstacle(model)
    if no_graphs is None:
        return graphs.run_on_device, ""
    no_native = native.obstacle(model)
    if no_native is None:
        return native.run_native, ""
    return None, no_graphs if model.mel_mean.device.type == "cuda" else no_native


@functools.cache
def _say_once(reason: str, precision: str) -> None:
    """Which engine runs is said once, and that it has one precision."""
    log.info("free-running by the modules themselves, step by step: %s", reason)
    if precision != "float32":
        log.warning("generation in %s is not to be had this way: %s", precision, reason)
