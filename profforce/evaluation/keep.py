"""What was spoken in an evaluation, as files."""

from pathlib import Path

from profforce.config import EvaluateConfig
from profforce.evaluation.report import Report
from profforce.sampling.names import stems
from profforce.sampling.output import mastered, require_writable, write_array, write_output


def keep(report: Report, out: Path, config: EvaluateConfig) -> None:
    """Write audio and mel (``.npy``, ``[T, M]`` natural-log amplitude) of each utterance.

    With several runs each has a folder of its own, numbered in their order.
    Raises :class:`UserError` if they cannot be written.
    """
    names = stems(report.material.requests)
    alone = len(report.evaluations) == 1
    for number, one in enumerate(report.evaluations, 1):
        folder = out if alone else out / f"{number}-{Path(one.run).name}"
        require_writable(folder)
        for name, spoken in zip(names, one.spoken, strict=True):
            audio, rate, _ = mastered(spoken.audio, one.mel.sample_rate, config)
            write_output(folder / f"{name}.{config.format}", audio, rate, config.subtype)
            write_array(folder / f"{name}.npy", spoken.mel.numpy())
