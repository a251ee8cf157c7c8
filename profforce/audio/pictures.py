"""Pictures of an utterance: mel, alignment and stop curve. No global state of matplotlib is used.

T mel frames, M mel channels, R reduction factor, U = ceil(T / R) decoder steps, S symbols.
"""

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from profforce.config import MelConfig
from profforce.errors import UserError

MAX_LABELS = 120
"""Beyond this many symbols the alignment's axis counts them instead of naming them."""
SHOWN = {" ": "_", "<eos>": "end", "<pad>": "pad"}
SILENCE = -11.6
"""Bottom of the mel's colour scale: log of just under 1e-5."""


@dataclass(frozen=True)
class Behaviour:
    """One way the model spoke an utterance: ``mel [T, M]``, ``alignment [U, S]``, stops.

    ``stop_probability`` is a value a frame ``[T]`` or a decoder step ``[U]``, between 0 and 1.
    """

    name: str
    mel: ArrayLike | Tensor
    alignment: ArrayLike | Tensor
    stop_probability: ArrayLike | Tensor


def draw_utterance(
    mel: ArrayLike | Tensor,
    alignment: ArrayLike | Tensor,
    stop_probability: ArrayLike | Tensor,
    *,
    symbols: Sequence[str],
    title: str,
    mel_config: MelConfig,
    reduction_factor: int,
) -> Figure:
    """Mel, alignment and stop curve of one utterance, one above the other.

    ``mel [T, M]`` natural-log amplitude; ``alignment [U, S]`` weights of decoder step on symbol;
    ``stop_probability`` a value a frame or decoder step.
    """
    behaviour = Behaviour("", mel, alignment, stop_probability)
    return _draw([behaviour], symbols, title, mel_config, reduction_factor)


def draw_comparison(
    teacher_forced: Behaviour,
    free_running: Behaviour,
    *,
    symbols: Sequence[str],
    title: str,
    mel_config: MelConfig,
    reduction_factor: int,
) -> Figure:
    """Both behaviours side by side on the same scales, so that they can be compared by eye."""
    pair = [teacher_forced, free_running]
    return _draw(pair, symbols, title, mel_config, reduction_factor)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write ``figure`` in the format of the suffix; the file appears whole or not at all."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(aside, format=path.suffix.lstrip(".") or "png")
        aside.replace(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the picture ({error})", where=path) from error
    finally:
        aside.unlink(missing_ok=True)


def _draw(
    behaviours: Sequence[Behaviour],
    symbols: Sequence[str],
    title: str,
    mel_config: MelConfig,
    reduction_factor: int,
) -> Figure:
    mels = [_array(b.mel) for b in behaviours]
    frame_s = mel_config.hop_length / mel_config.sample_rate
    longest = max(max(len(mel) for mel in mels), 1)
    height = 4.0 + max(0.115 * min(len(symbols), MAX_LABELS), 1.0)  # room for the axis' name
    width = min(6.0 + 2.0 * longest * frame_s / 3.0, 14.0) * (0.8 * len(behaviours) + 0.2)
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, 110), fontsize=10, parse_math=False)
    axes = figure.subplots(
        3, len(behaviours), squeeze=False, sharex=True, height_ratios=[2, height - 3, 1]
    )
    loudest = max((float(mel.max()) for mel in mels if mel.size), default=0.0)
    alignments = [_array(b.alignment) for b in behaviours]
    most = max((float(weights.max()) for weights in alignments if weights.size), default=1.0)
    columns = zip(behaviours, mels, alignments, axes.T, strict=True)
    for behaviour, mel, alignment, column in columns:
        seconds = len(mel) * frame_s
        column[0].set_title(behaviour.name.replace("_", "-"), fontsize=9)
        _draw_mel(column[0], mel, seconds, loudest)
        step_s = frame_s * reduction_factor
        _draw_alignment(column[1], alignment, step_s, symbols, most)
        _draw_stop(column[2], _array(behaviour.stop_probability), seconds)
        column[2].set_xlim(0, longest * frame_s)
    return figure


def _draw_mel(axes: Axes, mel: NDArray[np.float32], seconds: float, loudest: float) -> None:
    axes.set_ylabel("mel channel")
    if not mel.size:
        axes.text(0.5, 0.5, "no frames", ha="center", va="center", transform=axes.transAxes)
        return
    axes.imshow(
        mel.T,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="magma",
        vmin=SILENCE,
        vmax=max(loudest, SILENCE + 1),
        extent=(0, seconds, -0.5, mel.shape[1] - 0.5),
    )


def _draw_alignment(
    axes: Axes, alignment: NDArray[np.float32], step_s: float, symbols: Sequence[str], most: float
) -> None:
    """The colours reach to the largest weight, which is named: flat attention is not black."""
    axes.set_ylabel(f"symbol\n(attention up to {most:.2f})")
    if alignment.size:
        num_steps, num_symbols = alignment.shape
        axes.imshow(
            alignment.T,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            cmap="viridis",
            vmin=0,
            vmax=max(most, 1e-3),
            extent=(0, num_steps * step_s, -0.5, num_symbols - 0.5),
        )
    if len(symbols) <= MAX_LABELS:
        labels = [SHOWN.get(symbol, symbol) for symbol in symbols]
        axes.set_yticks(range(len(symbols)), labels, fontsize=7, parse_math=False)


def _draw_stop(axes: Axes, stop: NDArray[np.float32], seconds: float) -> None:
    axes.set_ylabel("stop")
    axes.set_xlabel("seconds")
    axes.set_ylim(-0.05, 1.05)
    if stop.size:
        middles = (np.arange(len(stop)) + 0.5) * seconds / len(stop)
        axes.plot(middles, stop, color="tab:red", marker="." if len(stop) == 1 else None)
    axes.axhline(0.5, color="grey", linewidth=0.5)


def _array(values: ArrayLike | Tensor) -> NDArray[np.float32]:
    if isinstance(values, torch.Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)
