"""``profforce evaluate``."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profforce.commands.shared import EvaluateOverrides
from profforce.commands.together import device_for, shown_by_first, team_for
from profforce.errors import UserError
from profforce.lines import texts_to_speak

if TYPE_CHECKING:
    from collections.abc import Callable

    from profforce.config import DataConfig, EvaluateConfig
    from profforce.data.corpus import Corpus
    from profforce.data.progress import Progress
    from profforce.evaluation.material import Material
    from profforce.evaluation.report import Report
    from profforce.training.distributed import Team


def evaluate(
    run: Annotated[Path, typer.Option(help="Folder of a training run.")],
    overrides: EvaluateOverrides = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE|-",
            help="Texts instead of the held-out utterances: a line each, or .jsonl.",
        ),
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="The bundled 60 hard sentences instead.")
    ] = False,
    compare: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Another run on the same texts; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep what was spoken, a folder a run.")
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is stdout.")
    ] = None,
    markdown_to: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE|-", help="Write Markdown tables.")
    ] = None,
    html_to: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE|-", help="Write one page with audio and pictures."),
    ] = None,
) -> None:
    """Measure a run free-running: failures, stops, and distances to recordings; prints a table."""
    from profforce.bridge import compose
    from profforce.config import EvaluateConfig
    from profforce.display import show_evaluation

    targets = [json_to, markdown_to, None if html_to is None else str(html_to)]
    _check_outputs([*filter(None, targets)])
    cfg = compose(EvaluateConfig, "evaluate", list(overrides or []))
    with team_for(cfg.device) as team, shown_by_first() as progress:
        from profforce.evaluation.keep import keep
        from profforce.sampling.output import require_writable

        if out is not None:
            require_writable(out)
        report = _measured(
            [run, *(compare or [])],
            cfg,
            lambda: _material(run, source, hard, cfg, progress),
            progress,
            team,
        )
    if report is None:
        return
    _give(report, targets)
    if out is not None:
        keep(report, out, cfg)
    if "-" not in targets:
        show_evaluation(report)


def _measured(
    runs: list[Path],
    cfg: "EvaluateConfig",
    read: "Callable[[], Material]",
    progress: "Progress",
    team: "Team",
) -> "Report | None":
    """What the processes of ``team`` measured on the texts that the first one ``read``s.

    None in all but the first.
    """
    from profforce.evaluation.evaluate import evaluate as measure
    from profforce.evaluation.evaluate import require_comparable
    from profforce.evaluation.judges import judges_of
    from profforce.evaluation.judging import Judge, judged
    from profforce.evaluation.report import Report

    judges: list[Judge] = []
    team.from_first("loading the judges", lambda: judges.extend(judges_of(cfg)))
    material = team.from_first("reading the texts", read)
    cfg = replace(cfg, device=device_for(team, cfg.device))
    require_comparable(runs, material, cfg)
    measured = [measure(folder, material, cfg, progress, team) for folder in runs]
    if not team.is_first:
        return None
    if judges:
        measured = judged(measured, material, judges, progress)
    return Report(material, measured, timing=cfg.timing)


def _give(report: "Report", targets: list[str | None]) -> None:
    """Write the report as JSON, Markdown and HTML, each where it is wanted."""
    from profforce.data.files import write_text
    from profforce.evaluation.page import to_html
    from profforce.evaluation.report import to_json, to_markdown

    for writer, target in zip((to_json, to_markdown, to_html), targets, strict=True):
        if target == "-":
            typer.echo(writer(report), nl=False)
        elif target is not None:
            write_text(Path(target), writer(report))


def _material(
    run: Path, source: Path | None, hard: bool, cfg: "EvaluateConfig", progress: "Progress"
) -> "Material":
    from profforce.config import JudgeName
    from profforce.evaluation.material import NUM_HELD_OUT, held_out_of

    texts = _texts(source, hard, cfg.num_utterances)
    compares_voices = JudgeName.speaker in cfg.all_judges
    if texts is not None and not compares_voices:
        return texts
    note = "texts without recordings: --hard or --input FILE"
    if texts is not None:
        note = "the judge 'speaker' compares with the run's corpus: leave it out of judges"
    try:
        data, corpus = _corpus_of(run, progress)
        texts = texts or held_out_of(corpus, data, cfg.num_utterances or NUM_HELD_OUT)
        if compares_voices:
            return texts.with_voices(corpus, data, cfg.num_voice_recordings, cfg.speaker)
        return texts
    except UserError as err:
        err.add_note(note)
        raise


def _texts(source: Path | None, hard: bool, count: int | None) -> "Material | None":
    """Those that are given; None if they are to be held-out utterances."""
    from profforce.evaluation.material import given_texts, hard_sentences

    if hard and source is not None:
        raise UserError("give either --hard or --input FILE", got="both")
    if hard:
        return hard_sentences(count)
    if source is not None:
        name = "standard input" if str(source) == "-" else source.name
        return given_texts(f"texts of {name}", texts_to_speak(None, source), count)
    return None


def _corpus_of(run: Path, progress: "Progress") -> "tuple[DataConfig, Corpus]":
    from profforce.bridge import saved_settings
    from profforce.data.corpus import load_corpus

    settings = saved_settings(run)
    return settings.data, load_corpus(settings.data, settings.text, settings.mel, progress)


def _check_outputs(targets: list[str]) -> None:
    """Refuse before measuring what could not be written after it."""
    if targets.count("-") > 1:
        raise UserError("only one of --json, --markdown and --html can go to stdout")
    for path in (Path(target) for target in targets if target != "-"):
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UserError("cannot be written", where=path, remedy="make its folder first")
