"""``profforce export``: the graphs of a run, what they mean, and a proof that they say the same.

Shapes: B batch, S symbols, T mel frames.
"""

import importlib
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from profforce import __version__
from profforce.config import SampleConfig
from profforce.disk import told_by_system
from profforce.errors import UserError
from profforce.export import onnx_loop
from profforce.export.graphs import (
    EncoderGraph,
    PostnetGraph,
    StateSpec,
    StepGraph,
    exportable,
    memory_names,
    state_specs,
)
from profforce.models.checkpoint import find_checkpoint, load_model, reason
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TTSModel
from profforce.nn.noise import PrenetNoise
from profforce.sampling.output import MAKE_ROOM, require_writable
from profforce.sampling.stopping import MIN_LIMIT_S

log = logging.getLogger(__name__)

META = "meta.json"
GRAPHS = {"encoder": "encoder.onnx", "decoder_step": "decoder_step.onnx", "postnet": "postnet.onnx"}
REMEDY = "run: pip install 'profforce[onnx]'"
OPSET = 18
CHECKED_FRAMES = 48
TOLERANCE = 1e-3
"""Nepers by which a frame of the check may differ: rounding, fed back 48 frames long."""

NOISE_RULE = (
    "uint32 arithmetic; mix(x): twice x = (x ^ (x >> 16)) * 0x45d9f3b, then x ^ (x >> 16); "
    "row = mix(mix(seed * 0x9e3779b1 + layer * 0x85ebca6b) + identity); cell = mix(row + step); "
    "bits = mix(cell + channel); kept = bits >= dropout * 2**32. The identity of a text is the "
    "little-endian number of blake2b(text read by the model, in UTF-8, digest_size=4)"
)


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    checkpoint: str
    num_bytes: int
    difference: float
    """Largest of the mel's from the model's own free run, nepers."""


def export(run: Path, out: Path, config: SampleConfig) -> Exported:
    """Write the graphs of a run's checkpoint into the folder ``out``.

    Args:
        run: folder of a training run.
        out: gets three graphs, ``meta.json`` and the loop.
        config: which checkpoint, and where an utterance ends.

    Raises:
        UserError: for an unusable run or folder, packages that are missing, a layer that has no
            ONNX form, and graphs that do not say what the model says.
    """
    _require_packages()
    path = find_checkpoint(run, config.checkpoint)
    loaded, checkpoint_meta = load_model(path, torch.device("cpu"))
    meta = describe(exportable(loaded), checkpoint_meta, config, path.name)
    require_writable(out)
    try:
        size, difference = _write_all(loaded, meta, out)
    except OSError as err:
        raise UserError(
            "cannot write the graphs", where=out, got=err.strerror or str(err), remedy=MAKE_ROOM
        ) from err
    return Exported(out, path.name, size, difference)


def _write_all(loaded: TTSModel, meta: dict[str, Any], out: Path) -> tuple[int, float]:
    """Files of an export, which appear in ``out`` once they are proved; bytes and difference."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".export-") as name:
        aside = Path(name)
        write_graphs(exportable(loaded), aside)
        (aside / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        shutil.copyfile(onnx_loop.__file__, aside / "onnx_loop.py")
        difference = largest_difference(loaded, aside)
        size = sum(file.stat().st_size for file in aside.iterdir())
        for file in sorted(aside.iterdir(), key=lambda file: file.name == META):  # meta last
            file.replace(out / file.name)
    return size, difference


def describe(
    model: TransformerTTS, checkpoint: dict[str, Any], config: SampleConfig, name: str
) -> dict[str, Any]:
    """What the graphs mean, for ``meta.json``."""
    sizes = model.config
    return {
        "onnx_format": onnx_loop.FORMAT,
        "profforce": __version__,
        "checkpoint": name,
        "graphs": GRAPHS,
        "tokenizer": checkpoint["tokenizer"],
        "mel": checkpoint["mel"],
        "reduction_factor": sizes.reduction_factor,
        "speakers": checkpoint["speakers"],
        "num_speakers": sizes.num_speakers,
        "ends": {
            "stop_threshold": config.stop_threshold,
            "tail_frames": config.tail_frames,
            "min_seconds_per_symbol": config.min_seconds_per_symbol,
            "max_seconds_per_symbol": config.max_seconds_per_symbol,
            "min_limit_s": MIN_LIMIT_S,
        },
        "prenet": {
            "layers": sizes.prenet_layers,
            "width": sizes.prenet_width,
            "dropout": sizes.prenet_dropout,
            "rule": NOISE_RULE,
        },
        "memories": [*memory_names(model), "mask"],
        "states": [asdict(spec) for spec in state_specs(model)],
    }


def write_graphs(model: TransformerTTS, folder: Path) -> None:
    """The three graphs of an :func:`exportable` model; every batch and length goes through them."""
    states, memories = state_specs(model), memory_names(model)
    symbols = {
        "symbols": torch.ones(2, 7, dtype=torch.int64),
        "symbol_lengths": torch.tensor([7, 5]),
    }
    axes: dict[str, dict[int, str]] = {"symbols": {0: "batch", 1: "symbols"}}
    axes["symbol_lengths"] = axes["speakers"] = axes["lengths"] = {0: "batch"}
    if model.speaker is not None:
        symbols["speakers"] = torch.tensor([0, 0])
    encoder = EncoderGraph(model)
    _write(encoder, symbols, [*memories, "mask"], axes, folder / GRAPHS["encoder"])
    with torch.no_grad():
        *pairs, mask = (tensor.contiguous() for tensor in encoder(*symbols.values()))
    config, frames = model.config, model.config.reduction_factor * model.num_mels
    step = {
        "step": torch.tensor(3),
        "frames": torch.zeros(2, frames),
        "kept": torch.ones(2, config.prenet_layers, config.prenet_width, dtype=torch.bool),
        "mask": mask,
        **dict(zip(memories, pairs, strict=True)),
        **{spec.name: _example(spec) for spec in states},
    }
    axes |= {"frames": {0: "batch"}, "kept": {0: "batch"}, "mask": {0: "batch", 3: "symbols"}}
    axes |= {name: {0: "batch", 2: "symbols"} for name in memories}
    for spec in states:
        axes[spec.name] = {i: n for i, n in enumerate(spec.shape) if isinstance(n, str)}
    outputs = ["next_frames", "stop_probability", "alignments"]
    outputs += [f"next_{spec.name}" for spec in states]
    _write(StepGraph(model), step, outputs, axes, folder / GRAPHS["decoder_step"])
    spoken = {"frames": torch.zeros(2, 9, model.num_mels), "lengths": torch.tensor([9, 4])}
    axes["frames"] = {0: "batch", 1: "frames"}
    _write(PostnetGraph(model), spoken, ["mel"], axes, folder / GRAPHS["postnet"])


def _example(spec: StateSpec) -> Tensor:
    named = {"batch": 2, "symbols": 7, "steps": 3}
    sizes = [named[n] if isinstance(n, str) else n for n in spec.shape]
    return torch.zeros(sizes, dtype=getattr(torch, spec.dtype))


def _write(
    graph: nn.Module,
    inputs: dict[str, Tensor],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
    path: Path,
) -> None:
    """Trace ``graph`` on ``inputs``; ``axes`` of each that may have any size.

    Raises:
        UserError: if the graph cannot be traced.
        OSError: with the system's words, if the file cannot be written.
    """
    shapes = [dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) for name in inputs]
    plain = 4 if isinstance(graph, StepGraph) else len(shapes)  # what follows is *rest
    dynamic = (*shapes[:plain], *([tuple(shapes[plain:])] if plain < len(shapes) else []))
    try:
        with told_by_system(path), _quiet(), torch.no_grad():
            torch.onnx.export(
                graph.eval(),
                tuple(inputs.values()),
                str(path),
                input_names=list(inputs),
                output_names=outputs,
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
                dynamic_shapes=dynamic,
            )
    except (UserError, MemoryError):
        raise
    except Exception as err:  # torch raises many kinds for what it cannot trace
        if isinstance(err, OSError) and err.errno is not None:
            raise
        raise UserError(
            "a layer of this model cannot be exported",
            where=path.name,
            got=reason(err.__cause__ or err),
        ) from err


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on packages that nobody needs here."""
    talkers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [talker.level for talker in talkers]
    for talker in talkers:
        talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)


def largest_difference(model: TTSModel, folder: Path) -> float:
    """Of the free run of the graphs in ``folder`` from the model's own, over a made text.

    Raises :class:`UserError` if it is more than rounding.
    """
    voice = onnx_loop.OnnxVoice(folder)
    count = min(len(voice.symbols), 24)
    numbers = [*range(2, count), 1]
    rate = voice.meta["mel"]["hop_length"] / voice.meta["mel"]["sample_rate"]
    voice.meta["ends"] |= {
        "stop_threshold": 2.0,  # no probability ends it
        "min_limit_s": 0.0,
        "max_seconds_per_symbol": CHECKED_FRAMES * rate / len(numbers),
    }
    (ours,) = voice.speak([numbers], identities=[7])
    truth = Mirror(model).free_run(
        torch.tensor([numbers]),
        torch.tensor([len(numbers)]),
        torch.tensor([len(ours.mel)]),
        noise=PrenetNoise(0, torch.tensor([7])),
        stop_threshold=2.0,
        plain=True,
    )
    difference = float(np.abs(ours.mel - truth.mel[0].numpy()).max())
    if not difference <= TOLERANCE:
        raise UserError(
            "the graphs do not say what the model says",
            where=folder.parent,
            got=f"a difference of {difference:g} nepers",
            expected=f"at most {TOLERANCE:g}",
            remedy="a layer of one's own may do what a graph cannot: export without it",
        )
    return difference


def _require_packages() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as err:
            raise UserError(f"'{err.name}' is not installed", remedy=REMEDY) from err
