"""``profforce sample``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profforce.commands.shared import SampleOverrides, print_json, say
from profforce.commands.together import device_for, in_order, shown_by_first, team_for
from profforce.errors import UserError
from profforce.jobs import rank, started_by_torchrun
from profforce.lines import texts_to_speak

if TYPE_CHECKING:
    from profforce.config import SampleConfig
    from profforce.sampling.request import Request
    from profforce.sampling.run import Failures


def sample(
    run: Annotated[Path, typer.Option(help="Folder of a training run.")],
    out: Annotated[
        Path, typer.Option(help="Folder for wav, mel and picture; with --stream - is stdout.")
    ],
    overrides: SampleOverrides = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be repeated.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE|-",
            help="A file with a text a line, or .jsonl with text, id, speaker; - is stdin.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write the audio as it is made: wav files that grow, or --out - for a pipe.",
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if an utterance has faults.")
    ] = False,
) -> None:
    """Speak texts with a trained run; prints one JSON line an utterance.

    Utterances with faults (skipping, babbling, no stop ...) are named in one line at the end.
    """
    from profforce.bridge import compose
    from profforce.config import SampleConfig

    cfg = compose(SampleConfig, "sample", list(overrides or []))
    if str(out) == "-" and not stream:
        raise UserError("only a stream goes to stdout", where="--out -", remedy="add --stream")
    if stream and started_by_torchrun():
        raise UserError("a stream comes from one process", remedy="leave out --stream or torchrun")
    failed = _spoken(cfg, run, [] if rank() else texts_to_speak(text, source), out, stream)
    if failed:
        say(failed.summary(), "yellow")
        if strict:
            raise typer.Exit(1)


def _spoken(
    cfg: "SampleConfig", run: Path, texts: "list[Request]", out: Path, stream: bool
) -> "Failures":
    """Speak ``texts`` and print a line for each; which of them have faults."""
    with team_for(cfg.device) as team, shown_by_first() as progress:
        from profforce.sampling.run import Failures
        from profforce.sampling.run import sample as whole_sample
        from profforce.sampling.stream_run import stream_sample

        texts = team.from_first("reading the texts", lambda: texts)
        cfg = replace(cfg, device=device_for(team, cfg.device))
        if stream:
            made = stream_sample(cfg, run, texts, out)
        else:
            made = whole_sample(cfg, run, texts, out, share=team.share)
        failed = Failures()
        rows = in_order(team, made, len(texts), cfg.batch_size)
        for number, row in enumerate(rows, 1):
            print_json(row, err=str(out) == "-")  # stdout holds the audio
            failed.add(row)
            progress("speaking", number, len(texts))
    return failed
