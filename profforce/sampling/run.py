"""What ``profforce sample`` does: files and one row an utterance."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from profforce.audio.pictures import draw_utterance, save_figure
from profforce.config import SampleConfig
from profforce.errors import UserError
from profforce.sampling.faults import Fault
from profforce.sampling.names import stems
from profforce.sampling.output import mastered, require_writable, write_array, write_output
from profforce.sampling.request import Request, requests_of
from profforce.sampling.script import Script
from profforce.sampling.spoken import Spoken, SpokenPart
from profforce.sampling.synthesizer import Synthesizer

MAX_NAMED = 5
"""Files named in the line about failures."""


def sample(
    cfg: SampleConfig,
    run: Path,
    texts: Iterable[str | Request],
    out: Path,
    *,
    share: slice = slice(None),
) -> Iterator[dict[str, object]]:
    """Speak ``texts`` with ``run`` into ``out``; yields one JSON-able row an utterance, in order.

    Writes ``STEM.wav`` (or ``.flac``), the mel as ``.npy`` (``[T, M]`` float32, natural-log
    amplitude) and, with ``cfg.pictures``, mel, alignment and stop curve as ``.png``, of a text in
    several pieces as ``STEM.NN.png`` each. STEM is the request's id, or ``NNNN-words``.
    Of ``texts`` only those of ``share`` are spoken, as they are spoken among all.

    Raises:
        UserError: for an unusable run, output folder or text; texts are checked before any file
            is written.
    """
    synthesizer = Synthesizer.from_run(run, cfg)
    names, scripts = scripts_of(synthesizer, texts)
    require_writable(out)
    for name, spoken in zip(names[share], synthesizer.speak_scripts(scripts[share]), strict=True):
        yield _write(spoken, out / name, synthesizer)


def scripts_of(
    synthesizer: Synthesizer, texts: Iterable[str | Request]
) -> tuple[list[str], list[Script]]:
    """File names without suffix, and scripts of ``texts``."""
    requests = requests_of(texts)
    if not requests:
        raise UserError("no text to speak", remedy="give --text TEXT or an --input with lines")
    return stems(requests), [synthesizer.script(request) for request in requests]


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
        "stopped_by": str(spoken.stopped_by),
        "retries": spoken.retries,
        "real_time_factor": round(spoken.seconds_spent / seconds, 4),
        "alignment_coverage": round(spoken.coverage, 4),
        "warnings": [*spoken.warnings, *remarks],
        "faults": _faults(spoken, _frame_s(synthesizer)),
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
        "stopped_by": str(part.stopped_by),
        "retries": part.retries,
        "alignment_coverage": round(part.coverage, 4),
        "picture": picture,
    }


def _faults(spoken: Spoken, frame_s: float) -> list[dict[str, object]]:
    """Those of all parts, timed within the utterance."""
    return [
        fault_row(fault.later(start * frame_s))
        for part, start in zip(spoken.parts, spoken.starts, strict=True)
        for fault in part.faults
    ]


def fault_row(fault: Fault) -> dict[str, object]:
    """JSON-able."""
    return {
        "kind": str(fault.kind),
        "start_s": round(fault.start_s, 3),
        "end_s": round(fault.end_s, 3),
        "detail": fault.detail,
    }


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


class Failures:
    """Counts rows of :func:`sample` that have faults, for one line at the end."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.names: list[str] = []
        self.kinds: Counter[str] = Counter()

    def add(self, row: dict[str, object]) -> None:
        """Look at one row."""
        self.num_rows += 1
        faults = row["faults"]
        assert isinstance(faults, list)
        if faults:
            name = Path(str(row["wav"])).name
            self.names.append(f"number {self.num_rows}" if name == "-" else name)  # - is stdout
            self.kinds.update({fault["kind"] for fault in faults})

    def __len__(self) -> int:
        return len(self.names)

    def summary(self) -> str:
        """How many, which, and of what kinds."""
        kinds = ", ".join(f"{kind} in {count}" for kind, count in self.kinds.most_common())
        first, more = self.names[:MAX_NAMED], len(self.names) - MAX_NAMED
        named = ", ".join(first) + (f" and {more} more" if more > 0 else "")
        return (
            f"{len(self)} of {self.num_rows} utterances have faults ({kinds}): {named}; "
            "see 'faults' in their lines, listen to them, or try another seed"
        )
