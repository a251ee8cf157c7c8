"""Running a suite: times in turn, then peak memory, then errors."""

import logging
from collections.abc import Callable
from typing import cast

import torch

from profforce.bench.machine import environment
from profforce.bench.peak import peaks_on_cpu, peaks_on_cuda
from profforce.bench.report import Report, Row, case_name
from profforce.bench.suite import Case, DerivingSuite, Form, Suite, find_suite
from profforce.bench.timing import interleave, spread
from profforce.config import BenchConfig
from profforce.errors import UserError, did_you_mean
from profforce.nn.device import choose_device

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
Peaks = dict[str, float | None]


def run_suite(config: BenchConfig, progress: Progress) -> Report:
    """Measure every form of every case of ``config.suite``.

    Args:
        config: the settings.
        progress: told ``(label, done, total)``.

    Raises:
        UserError: for a suite, size or device that does not exist.
    """
    suite = find_suite(config.suite)
    cases = suite.cases(config)
    device = choose_device(config.device)
    threads = torch.get_num_threads()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    try:
        groups = _wanted(suite.groups(config, device), config.forms)
        place = environment(config, device)  # now, since the checkout may change meanwhile
        rows = _measure(suite, cases, groups, config, device, progress)
        derives = isinstance(suite, DerivingSuite) and config.forms is None
        derived = cast(DerivingSuite, suite).derive(rows, config) if derives else None
        return Report(place, rows, derived)
    finally:
        torch.set_num_threads(threads)


def _wanted(groups: dict[str, list[str]], forms: list[str] | None) -> dict[str, list[str]]:
    """The groups with only ``forms`` in them."""
    if forms is None:
        return groups
    known = [name for group in groups.values() for name in group]
    for name in forms:
        if name not in known:
            raise UserError(
                f"the suite has no form '{name}' here{did_you_mean(name, known)}",
                where="forms",
                expected=", ".join(known),
            )
    kept = {key: [name for name in group if name in forms] for key, group in groups.items()}
    return {key: group for key, group in kept.items() if group}


def _measure(
    suite: Suite,
    cases: list[Case],
    groups: dict[str, list[str]],
    config: BenchConfig,
    device: torch.device,
    progress: Progress,
) -> list[Row]:
    names = [name for group in groups.values() for name in group]
    peaks: list[Peaks] = [{} for _ in cases]
    if config.memory and device.type == "cpu":
        peaks = _cpu_peaks(cases, groups, config, progress)
    rows: list[Row] = []
    for case, known in zip(cases, peaks, strict=True):
        forms = suite.forms(names, case, config, device)
        times = _times(forms, case, config, device, progress)
        if config.memory and device.type == "cuda":
            known = peaks_on_cuda({name: form.run for name, form in forms.items()}, device)
        errors = _errors(forms, case, progress) if config.check else {}
        for name, form in forms.items():
            median, iqr = spread(times[name])
            rows.append(
                Row(
                    suite=config.suite,
                    case=case,
                    form=name,
                    ms_median=median,
                    ms_iqr=iqr,
                    peak_mib=known.get(name),
                    error=errors.get(name),
                    flops=form.flops,
                )
            )
    return rows


def _times(
    forms: dict[str, Form],
    case: Case,
    config: BenchConfig,
    device: torch.device,
    progress: Progress,
) -> dict[str, list[float]]:
    label, total = f"timing {case_name(case)}", (config.warmup + config.repeats) * len(forms)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress(label, done, total)

    return interleave(
        {name: form.run for name, form in forms.items()},
        repeats=config.repeats,
        warmup=config.warmup,
        device=device,
        seed=config.seed,
        tick=tick,
    )


def _errors(forms: dict[str, Form], case: Case, progress: Progress) -> dict[str, float]:
    errors = {}
    for done, (name, form) in enumerate(forms.items(), 1):
        if form.error is not None:
            errors[name] = form.error()
        progress(f"checking {case_name(case)}", done, len(forms))
    return errors


def _cpu_peaks(
    cases: list[Case], groups: dict[str, list[str]], config: BenchConfig, progress: Progress
) -> list[Peaks]:
    found: list[Peaks] = [{} for _ in cases]
    for done, names in enumerate(groups.values(), 1):
        measured = peaks_on_cpu(config, names, cases, torch.get_num_threads())
        for known, more in zip(found, measured, strict=True):
            known.update(more)
        progress("reading peak memory", done, len(groups))
    return found
