"""What ``profforce sample --stream`` does: audio as it is made, and one row an utterance."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from profforce.config import AudioFormat, SampleConfig
from profforce.errors import UserError
from profforce.sampling.interrupt import Interrupts
from profforce.sampling.output import require_writable
from profforce.sampling.request import Request
from profforce.sampling.run import fault_row, scripts_of
from profforce.sampling.stopping import StoppedBy
from profforce.sampling.stream import Chunk, SpeechStream
from profforce.sampling.stream_output import STDOUT, AudioSink
from profforce.sampling.stream_piece import PieceEnd
from profforce.sampling.synthesizer import Synthesizer


def stream_sample(
    cfg: SampleConfig, run: Path, texts: Iterable[str | Request], out: Path
) -> Iterator[dict[str, object]]:
    """Speak ``texts`` with ``run`` as they are made; yields one JSON-able row an utterance.

    Writes ``STEM.wav`` (or ``.raw``) each, which grows; with ``out`` ``-`` everything goes to
    standard output, one text after the other with a paragraph's pause between. What is written
    stays when something ends it early, and the header of a file then says what it holds.

    Raises:
        UserError: for an unusable run, output or text, or a setting that needs the whole audio,
            before anything is written.
        BrokenPipeError: if nobody reads standard output any more.
    """
    if cfg.format is AudioFormat.flac:
        raise UserError("flac cannot be streamed", where="format", expected="wav or raw")
    synthesizer = Synthesizer.from_run(run, cfg)
    names, scripts = scripts_of(synthesizer, texts)
    streams = [synthesizer.stream_script(script) for script in scripts]
    piped = str(out) == STDOUT
    if not piped:
        require_writable(out)
    rate = synthesizer.sample_rate
    pause = np.zeros(round(cfg.paragraph_pause_s * rate), dtype=np.float32)
    with Interrupts() as interrupts, ExitStack() as stack:
        for number, (name, script, stream) in enumerate(zip(names, scripts, streams, strict=True)):
            path = STDOUT if piped else str(out / f"{name}.{cfg.format}")
            if number == 0 or not piped:
                stack.close()
                sink = stack.enter_context(AudioSink(path, rate, cfg.format, cfg.subtype))
            else:
                sink.write(pause)
            yield _spoken(stream, sink, script.request, path, interrupts)


def _spoken(
    stream: SpeechStream, sink: AudioSink, request: Request, path: str, interrupts: Interrupts
) -> dict[str, object]:
    """Write all of ``stream``; its row."""
    pieces: list[PieceEnd] = []
    num_samples = num_frames = 0
    spent, first_s, warnings = 0.0, 0.0, list[str]()
    for chunk, seconds in _timed(stream):
        first_s = first_s or spent + seconds
        spent += seconds
        sink.write(chunk.audio)
        interrupts.check()
        num_samples += len(chunk.audio)
        num_frames += len(chunk.mel)
        warnings += chunk.warnings
        pieces += [] if chunk.ended is None else [chunk.ended]
    seconds = num_samples / stream.sample_rate
    num_symbols = sum(piece.num_symbols for piece in pieces)
    covered = sum(piece.coverage * piece.num_symbols for piece in pieces)
    return {
        "text": request.text,
        **({} if request.id is None else {"id": request.id}),
        **({} if request.speaker is None else {"speaker": request.speaker}),
        "wav": path,
        "mel": None,
        "picture": None,
        "sample_rate": stream.sample_rate,
        "seconds": round(seconds, 4),
        "frames": num_frames,
        "stopped_by": str(max((p.stopped_by for p in pieces), key=list(StoppedBy).index)),
        "retries": 0,
        "real_time_factor": round(spent / seconds, 4),
        "first_audio_s": round(first_s, 4),
        "alignment_coverage": round(covered / num_symbols, 4),
        "warnings": warnings,
        "faults": [fault_row(f.later(p.start_s)) for p in pieces for f in p.faults],
        "pieces": [_piece(piece) for piece in pieces],
    }


def _timed(stream: SpeechStream) -> Iterator[tuple[Chunk, float]]:
    """Chunks, each with the seconds that it took to make."""
    chunks = iter(stream)
    while True:
        began = time.perf_counter()
        chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk, time.perf_counter() - began


def _piece(piece: PieceEnd) -> dict[str, object]:
    return {
        "text": piece.text,
        "start_s": round(piece.start_s, 4),
        "frames": piece.num_frames,
        "stopped_by": str(piece.stopped_by),
        "retries": 0,
        "alignment_coverage": round(piece.coverage, 4),
        "picture": None,
    }
