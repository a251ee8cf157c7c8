"""An evaluation as one HTML file that needs nothing else: tables, audio to play, pictures.

Sound is FLAC and pictures are PNG, inside the page as base64. The same figures give the same bytes.
"""

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from html import escape

import soundfile
from torch import Tensor

from profforce.audio.pictures import draw_utterance
from profforce.evaluation.evaluate import Evaluation
from profforce.evaluation.figures import Figure, number
from profforce.evaluation.report import Report, details, table
from profforce.sampling.spoken import Spoken

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
  color: #222; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left; }
td + td { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
section { border-top: 2px solid #ccc; margin-top: 2rem; }
h2 { font-size: 1.25rem; }
h3 { font-size: 1rem; overflow-wrap: anywhere; }
.fault { color: #a00; }
.runs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr));
  gap: 0 2rem; }
.runs > div { min-width: 0; }
img { max-width: 100%; }
figure { display: inline-block; margin: .5rem 1rem .5rem 0; }
"""
BITS = "PCM_16"
EITHER = ("failed", "stopped")
"""Figures that are 0 or 1 of one utterance."""


def to_html(report: Report) -> str:
    """The whole page."""
    title = f"{len(report.material.requests)} {report.material.name}, free-running"
    body = [
        f"<h1>{escape(title)}</h1>",
        "<p>Means with 95 % intervals over the utterances.</p>",
        _table(*table(report, report.kept)),
        *_failures(report),
        *_utterances(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _failures(report: Report) -> Iterator[str]:
    """Where to look first: utterances with faults, each with a link to its section."""
    for one in report.evaluations:
        failed = [(i, row) for i, row in enumerate(one.rows, 1) if row["faults"]]
        if failed:
            name = escape(one.run)
            yield f"<details><summary>{len(failed)} of {name} with faults</summary>\n<ul>"
            for i, row in failed:
                kinds = ", ".join(dict.fromkeys(str(fault["kind"]) for fault in row["faults"]))
                yield f'<li><a href="#u{i}">{i}. {escape(row["text"])}</a>: {escape(kinds)}</li>'
            yield "</ul></details>"


def _utterances(report: Report) -> Iterator[str]:
    """A section a text: the recording, then what each run made of it."""
    for i, request in enumerate(report.material.requests):
        yield f'<section id="u{i + 1}">\n<h2>{i + 1}. {escape(request.text)}</h2>'
        if report.material.recordings is not None:
            rate = report.evaluations[0].mel.sample_rate
            yield _player("recording", report.material.recordings[i].audio(rate), rate)
        yield '<div class="runs">'
        for one in report.evaluations:
            yield from _spoken(one, i, report.kept)
        yield "</div>\n</section>"


def _spoken(one: Evaluation, i: int, figures: Sequence[Figure]) -> Iterator[str]:
    row, spoken = one.rows[i], one.spoken[i]
    yield f"<div>\n<h3>{escape(one.run)}</h3>"
    yield _player("free-running", spoken.audio, one.mel.sample_rate)
    if row["faults"]:
        yield f'<p class="fault">{escape(details(row))}</p>'
    shown = [figure for figure in figures if row.get(figure.key) is not None]
    values = [_said(figure, row[figure.key]) for figure in shown]
    yield _table(
        ["", ""], [[figure.title, value] for figure, value in zip(shown, values, strict=True)]
    )
    yield from (_picture(png, row["text"]) for png in _pictures(one, spoken))
    yield "</div>"


def _said(figure: Figure, value: float) -> str:
    """A figure of one utterance: what is either so or not is no share of it."""
    if figure.key in EITHER:
        return "yes" if value else "no"
    return number(figure, value)


def _pictures(one: Evaluation, spoken: Spoken) -> Iterator[bytes]:
    """Mel, alignment and stop curve of each piece."""
    for part in spoken.parts:
        figure = draw_utterance(
            part.mel,
            part.alignment,
            part.stop_probability,
            symbols=part.symbols,
            title=part.text,
            mel_config=one.mel,
            reduction_factor=one.frames_a_step,
        )
        png = io.BytesIO()
        with warnings.catch_warnings():  # of characters the font lacks; it draws a box for them
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(png, format="png")
        yield png.getvalue()


def _picture(png: bytes, text: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<p><img alt="{escape(text)}" src="data:image/png;base64,{data}"></p>'


def _player(name: str, audio: Tensor, rate: int) -> str:
    sound = io.BytesIO()
    samples = audio.detach().cpu().float().clamp(-1.0, 1.0).numpy()
    soundfile.write(sound, samples, rate, format="FLAC", subtype=BITS)
    data = base64.b64encode(sound.getvalue()).decode("ascii")
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<audio controls preload="none" src="data:audio/flac;base64,{data}"></audio></figure>'
    )


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    top = f"<tr>{head}</tr>\n" if any(titles) else ""
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table>\n{top}{body}\n</table></div>'
