"""``profforce doctor``."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from profforce.commands.shared import print_json
from profforce.errors import UserError


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Compile every CUDA kernel ahead; needs no GPU.")
    ] = False,
    arch: Annotated[
        str | None,
        typer.Option(metavar="80,90", help="With --build: for these, not for the devices here."),
    ] = None,
) -> None:
    """Say what this machine offers; exit code 1 if something needed is broken."""
    if build:
        _build_kernels([] if arch is None else arch.split(","), as_json)
        return
    if arch is not None:
        raise UserError("--arch belongs to --build", remedy=f"use --build --arch {arch}")
    from profforce.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        from profforce.display import show_findings

        show_findings(findings)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _build_kernels(architectures: Sequence[str], as_json: bool) -> None:
    from profforce.display import log_to_stderr, show_builds, work_display
    from profforce.doctor import build

    log_to_stderr()
    with work_display() as progress:
        builds = build(architectures, progress)
    if as_json:
        print_json([asdict(row) for row in builds])
    else:
        show_builds(builds)
    if any(row.error is not None for row in builds):
        raise typer.Exit(1)
