"""What ``profforce sample`` does: files and one row an utterance."""

import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from anyascii import anyascii

from profforce.audio.files import write_audio
from profforce.audio.pictures import draw_utterance, save_figure
from profforce.config import SampleConfig
from profforce.errors import UserError
from profforce.sampling.synthesizer import Spoken, Synthesizer

SLUG_LENGTH = 40
LEAST_SECONDS_PER_SYMBOL = 0.02
"""Three times the pace of the fastest speech."""
log = logging.getLogger(__name__)


def sample(
    cfg: SampleConfig, run: Path, texts: Iterable[str], out: Path
) -> Iterator[dict[str, object]]:
    """Speak ``texts`` with ``run`` into ``out``; yields one JSON-able row an utterance, in order.

    Writes ``NNNN-words.wav``, the mel as ``.npy`` (``[T, M]`` float32, natural-log amplitude) and,
    with ``cfg.pictures``, mel, alignment and stop curve as ``.png``.

    Raises:
        UserError: for an unusable run, output folder or text; texts are checked before any file
            is written.
    """
    synthesizer = Synthesizer.from_run(run, cfg)
    lines = list(texts)
    if not lines:
        raise UserError("no text to speak", remedy="give --text TEXT or an --input with lines")
    for number, line in enumerate(lines, 1):
        synthesizer.check(line, f"text {number}")
    _writable(out)
    for number, spoken in enumerate(synthesizer.synthesize(lines), 1):
        _warn_if_cut(number, spoken, synthesizer)
        yield _write(spoken, out / f"{number:04}-{slug(spoken.text)}", synthesizer, cfg.pictures)


def _warn_if_cut(number: int, spoken: Spoken, synthesizer: Synthesizer) -> None:
    seconds = len(spoken.mel) * synthesizer.mel.hop_length / synthesizer.mel.sample_rate
    if seconds < LEAST_SECONDS_PER_SYMBOL * len(spoken.symbols):
        log.warning(
            "text %d: %.2f s for %d symbols is too short to be speech; a model that stops at once "
            "is not trained yet, or try a higher stop_threshold",
            *(number, seconds, len(spoken.symbols)),
        )


def slug(text: str) -> str:
    """A file name's worth of ``text``: lower-case ASCII words joined by hyphens, never empty."""
    words = re.sub(r"[^a-z0-9]+", "-", anyascii(text[: 4 * SLUG_LENGTH]).lower()).strip("-")
    return words[:SLUG_LENGTH].rstrip("-") or "text"


def _write(
    spoken: Spoken, stem: Path, synthesizer: Synthesizer, pictures: bool
) -> dict[str, object]:
    mel = synthesizer.mel
    wav, npy = stem.with_name(stem.name + ".wav"), stem.with_name(stem.name + ".npy")
    png = stem.with_name(stem.name + ".png")
    write_audio(wav, spoken.audio, mel.sample_rate)
    _save_array(npy, spoken.mel.numpy())
    if pictures:
        figure = draw_utterance(
            spoken.mel,
            spoken.alignment,
            spoken.stop_probability,
            symbols=spoken.symbols,
            title=spoken.text,
            mel_config=mel,
            reduction_factor=synthesizer.model.config.reduction_factor,
        )
        save_figure(figure, png)
    seconds = len(spoken.audio) / mel.sample_rate
    return {
        "text": spoken.text,
        "wav": str(wav),
        "mel": str(npy),
        "picture": str(png) if pictures else None,
        "seconds": round(seconds, 4),
        "frames": len(spoken.mel),
        "stopped_by": "stop" if spoken.stopped else "max_frames",
        "real_time_factor": round(spoken.seconds_spent / seconds, 4),
        "alignment_coverage": round(spoken.coverage, 4),
    }


def _save_array(path: Path, array: "np.typing.NDArray[np.float32]") -> None:
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("wb") as file:
        np.save(file, array)
    aside.replace(path)


def _writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=out)
        os.close(handle)
        Path(name).unlink()
    except OSError as err:
        raise UserError(
            "cannot write here",
            where=out,
            got=err.strerror or str(err),
            remedy="choose another --out folder",
        ) from err
