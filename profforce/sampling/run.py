"""What ``profforce sample`` does: files and one row an utterance."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from profforce.audio.pictures import draw_utterance, save_figure
from profforce.config import SampleConfig
from profforce.errors import UserError
from profforce.sampling.names import stems
from profforce.sampling.output import mastered, require_writable, write_array, write_output
from profforce.sampling.request import Request
from profforce.sampling.spoken import Spoken, SpokenPart
from profforce.sampling.synthesizer import Synthesizer

LEAST_SECONDS_PER_SYMBOL = 0.02
"""Three times the pace of the fastest speech."""
log = logging.getLogger(__name__)


def sample(
    cfg: SampleConfig, run: Path, texts: Iterable[str | Request], out: Path
) -> Iterator[dict[str, object]]:
    """Speak ``texts`` with ``run`` into ``out``; yields one JSON-able row an utterance, in order.

    Writes ``STEM.wav`` (or ``.flac``), the mel as ``.npy`` (``[T, M]`` float32, natural-log
    amplitude) and, with ``cfg.pictures``, mel, alignment and stop curve as ``.png``, of a text in
    several pieces as ``STEM.NN.png`` each. STEM is the request's id, or ``NNNN-words``.

    Raises:
        UserError: for an unusable run, output folder or text; texts are checked before any file
            is written.
    """
    synthesizer = Synthesizer.from_run(run, cfg)
    requests = [
        Request(text, f"text {number}") if isinstance(text, str) else text
        for number, text in enumerate(texts, 1)
    ]
    if not requests:
        raise UserError("no text to speak", remedy="give --text TEXT or an --input with lines")
    names = stems(requests)
    scripts = [synthesizer.script(request) for request in requests]
    require_writable(out)
    for name, spoken in zip(names, synthesizer.speak(scripts), strict=True):
        _warn_if_cut(spoken, synthesizer)
        yield _write(spoken, out / name, synthesizer)


def _warn_if_cut(spoken: Spoken, synthesizer: Synthesizer) -> None:
    seconds = sum(len(part.mel) for part in spoken.parts) * _frame_s(synthesizer)
    symbols = sum(len(part.symbols) for part in spoken.parts)
    if seconds < LEAST_SECONDS_PER_SYMBOL * symbols:
        log.warning(
            "%s: %.2f s for %d symbols is too short to be speech; a model that stops at once "
            "is not trained yet, or try a higher stop_threshold",
            *(spoken.request.where, seconds, symbols),
        )


def _frame_s(synthesizer: Synthesizer) -> float:
    return synthesizer.mel.hop_length / synthesizer.mel.sample_rate


def _write(spoken: Spoken, stem: Path, synthesizer: Synthesizer) -> dict[str, object]:
    config = synthesizer.config
    audio, rate, remarks = mastered(spoken.audio, synthesizer.mel.sample_rate, config)
    wav = stem.with_name(f"{stem.name}.{config.format}")
    npy = stem.with_name(stem.name + ".npy")
    write_output(wav, audio, rate, config.subtype)
    write_array(npy, spoken.mel.numpy())
    pictures = _draw(spoken, stem, synthesizer) if config.pictures else [None] * len(spoken.parts)
    seconds = len(audio) / rate
    request = spoken.request
    return {
        "text": request.text,
        **({} if request.id is None else {"id": request.id}),
        **({} if request.speaker is None else {"speaker": request.speaker}),
        "wav": str(wav),
        "mel": str(npy),
        "picture": pictures[0] if len(pictures) == 1 else None,
        "sample_rate": rate,
        "seconds": round(seconds, 4),
        "frames": len(spoken.mel),
        "stopped_by": _stopped_by(spoken.stopped),
        "real_time_factor": round(spoken.seconds_spent / seconds, 4),
        "alignment_coverage": round(spoken.coverage, 4),
        "warnings": [*spoken.warnings, *remarks],
        "pieces": [
            _piece(part, start * _frame_s(synthesizer), picture)
            for part, start, picture in zip(spoken.parts, spoken.starts, pictures, strict=True)
        ],
    }


def _piece(part: SpokenPart, start_s: float, picture: str | None) -> dict[str, object]:
    return {
        "text": part.text,
        "start_s": round(start_s, 4),
        "frames": len(part.mel),
        "stopped_by": _stopped_by(part.stopped),
        "alignment_coverage": round(part.coverage, 4),
        "picture": picture,
    }


def _stopped_by(stopped: bool) -> str:
    return "stop" if stopped else "max_frames"


def _draw(spoken: Spoken, stem: Path, synthesizer: Synthesizer) -> list[str]:
    """A picture a part; their paths."""
    paths = []
    digits = max(2, len(str(len(spoken.parts))))
    for number, part in enumerate(spoken.parts, 1):
        which = "" if len(spoken.parts) == 1 else f".{number:0{digits}}"
        path = stem.with_name(f"{stem.name}{which}.png")
        figure = draw_utterance(
            part.mel,
            part.alignment,
            part.stop_probability,
            symbols=part.symbols,
            title=part.text,
            mel_config=synthesizer.mel,
            reduction_factor=synthesizer.model.config.reduction_factor,
        )
        with warnings.catch_warnings():  # of characters the font lacks; it draws a box for them
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            save_figure(figure, path)
        paths.append(str(path))
    return paths
