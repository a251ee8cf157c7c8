"""A model examined: both its passes over the same texts, one row of figures an utterance.

T mel frames, M mel channels.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from profforce.config import FreerunConfig, MelConfig
from profforce.data.batch import Batch
from profforce.errors import UserError
from profforce.evaluation.exam import Exam
from profforce.evaluation.letters import Templates
from profforce.evaluation.verdict import judge
from profforce.evaluation.warp import slips_between
from profforce.models.metrics import dtw_mel_distance, mel_cepstral_distortion
from profforce.models.tts import TTSModel
from profforce.training.gap import measure_gap, read_along

Row = dict[str, Any]


def examine(
    model: TTSModel,
    exam: Exam,
    config: FreerunConfig,
    mel: MelConfig,
    templates: Templates | None,
) -> list[Row]:
    """Speak every text of ``exam`` teacher-forced and free-running and compare both to the truth.

    Args:
        model: in any mode.
        exam: with letters if ``templates`` is given.
        config: where a free run ends.
        mel: of the model.
        templates: of that definition; None judges by the alignment to the recording.

    Returns:
        One JSON-able row an utterance. Shares and counts are numbers, so that rows can be averaged.
        ``mcd_other_db`` is of the pass that is teacher-forced along another reading of the text: as
        near to this one as a model comes that makes no mistake of its own. ``mcd_excess_db`` is
        what a free run is farther away than that.
    """
    batch = exam.batch
    reading = measure_gap(model, batch, config)
    free, forced = reading.free_running, reading.teacher_forced
    others = None if exam.other is None else _along(model, exam.other)
    rows = []
    for i, text in enumerate(batch.texts):
        frames, made = int(batch.mel_lengths[i]), int(free.lengths[i])
        truth, own = batch.mel[i, :frames].cpu(), free.mel[i, :made].cpu()
        fed, stopped = forced.mel[i, :frames].cpu(), bool(free.stopped[i])
        row: Row = {
            "exam": exam.name,
            "text": text,
            "stopped": float(stopped),
            "stop_error_frames": float(abs(made - frames)),
            **distances(own, fed, truth),
        }
        if others is not None:
            row["mcd_other_db"] = mel_cepstral_distortion(others[i], truth)
            row["mcd_excess_db"] = row["mcd_free_db"] - row["mcd_other_db"]
        if exam.tokens is None or templates is None:
            row |= _by_warping(own, truth, mel, stopped)
        else:
            row |= _by_letters(exam, i, own, fed, mel, templates, stopped)
        rows.append(row)
    return rows


def examine_often(
    model: TTSModel,
    exam: Exam,
    config: FreerunConfig,
    mel: MelConfig,
    templates: Templates | None,
    readings: int,
) -> list[Row]:
    """As :func:`examine`, but each row is the mean of ``readings`` of its text.

    With dropout in the prenet no two free runs of a text are alike: one of each measures coarsely.
    """
    rows = examine(model, exam.repeated(readings), config, mel, templates)
    return [mean_row(rows[first : first + readings]) for first in range(0, len(rows), readings)]


def mean_row(rows: Sequence[Row]) -> Row:
    """The means of all figures; what is said in words is the first row's."""
    return {
        name: value if isinstance(value, str) else sum(float(row[name]) for row in rows) / len(rows)
        for name, value in rows[0].items()
    }


def _along(model: TTSModel, batch: Batch) -> list[Tensor]:
    """What ``model`` says teacher-forced over ``batch``: B mels ``[T, M]``."""
    mels = read_along(model, batch).mel.cpu()
    return [mel[:frames] for mel, frames in zip(mels, batch.mel_lengths.tolist(), strict=True)]


def distances(own: Tensor, fed: Tensor, truth: Tensor) -> Row:
    """How far ``own [T1, M]``, free-running, and ``fed [T2, M]``, forced, are from ``truth``.

    Cepstral distortion in dB, warped distance in nepers, and by how much free-running is worse.
    Raises :class:`UserError` if a value is not finite.
    """
    free_mcd, forced_mcd = (mel_cepstral_distortion(x, truth) for x in (own, fed))
    free_dtw, forced_dtw = (dtw_mel_distance(x, truth) for x in (own, fed))
    if max(free_mcd, forced_mcd) == float("inf"):
        raise UserError(
            "the model says values that are not finite (nan or inf)",
            remedy="it has diverged: examine an earlier checkpoint",
        )
    return {
        "mcd_free_db": free_mcd,
        "mcd_forced_db": forced_mcd,
        "mcd_gap_db": free_mcd - forced_mcd,
        "dtw_free": free_dtw,
        "dtw_forced": forced_dtw,
        "dtw_gap": free_dtw - forced_dtw,
    }


def _by_letters(
    exam: Exam,
    i: int,
    own: Tensor,
    fed: Tensor,
    mel: MelConfig,
    templates: Templates,
    stopped: bool,
) -> Row:
    assert exam.tokens is not None
    tokens = exam.tokens[i]
    verdict = judge(own, tokens, templates, mel, stopped=stopped)
    guided = judge(fed, tokens, templates, mel)
    edits, count = verdict.edits, verdict.num_symbols
    return {
        "failed": float(verdict.failed),
        "early": float(verdict.early),
        "late": float(verdict.late),
        "error_rate": edits.total / count,
        "deletion_rate": edits.deleted / count,
        "insertion_rate": edits.inserted / count,
        "repetition_rate": edits.repeated / count,
        "substitution_rate": edits.substituted / count,
        "error_rate_forced": guided.edits.total / count,
        "failed_forced": float(guided.failed),
    }


def _by_warping(own: Tensor, truth: Tensor, mel: MelConfig, stopped: bool) -> Row:
    slips = slips_between(own, truth, mel)
    return {
        "failed": float(slips.any or not stopped),
        "late": float(not stopped),
        "skipped_s": slips.skipped_s,
        "made_up_s": slips.made_up_s,
    }
