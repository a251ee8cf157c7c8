"""What ``profforce evaluate`` measures: a run speaks texts by itself and is compared with people.

S symbols, T mel frames, M mel channels, U decoder steps, N samples.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from profforce.audio.vocoder import Vocoder
from profforce.config import EvaluateConfig, MelConfig
from profforce.data.batch import Item, collate
from profforce.data.progress import Progress
from profforce.errors import UserError
from profforce.evaluation.figures import Row
from profforce.evaluation.material import Material, Recording
from profforce.evaluation.measure import distances
from profforce.evaluation.pitch import pitch_error
from profforce.models.checkpoint import find_checkpoint, load_meta
from profforce.models.metrics import focus_rate
from profforce.nn.modes import evaluating
from profforce.nn.noise import PrenetNoise
from profforce.sampling.spoken import Spoken
from profforce.sampling.synthesizer import Synthesizer
from profforce.training.distributed import ALONE, Team, interleaved
from profforce.training.gap import NOISE_SEED
from profforce.training.passes import teacher_forced

DIGITS = 6
"""Of the figures in the files."""


@dataclass(frozen=True)
class Evaluation:
    """One run measured."""

    run: str
    checkpoint: str
    rows: list[Row]
    """One an utterance."""
    spoken: list[Spoken]
    """What the rows are about."""
    mel: MelConfig
    frames_a_step: int
    """Mel frames a decoder step."""
    vocoder: Vocoder
    """It made the audio of ``spoken``."""
    forced: list[Tensor] | None = None
    """``[T, M]`` of each recording as the model says it when it is fed the recording."""

    def with_rows(self, rows: list[Row]) -> "Evaluation":
        """The same run with other figures."""
        return replace(self, rows=rows)


def require_comparable(runs: Sequence[Path], material: Material, config: EvaluateConfig) -> None:
    """Look at every run before any is measured.

    Raises:
        UserError: for a run without the checkpoint, or of another mel definition than the
            recordings.
    """
    for run in runs:
        meta = load_meta(find_checkpoint(run, config.checkpoint))
        found = "" if material.mel is None else MelConfig(**meta["mel"]).differences(material.mel)
        if found:
            raise UserError(
                "the mel definition is not that of the recordings",
                where=run,
                got=found,
                remedy="compare runs of one definition, or give texts with --input or --hard",
            )


def evaluate(
    run: Path,
    material: Material,
    config: EvaluateConfig,
    progress: Progress | None = None,
    team: Team = ALONE,
) -> Evaluation:
    """Let ``run`` speak ``material`` free-running, and judge each utterance.

    The processes of a ``team`` divide the texts and all get the whole.

    Recordings have to be of the run's mel definition, see :func:`require_comparable`.

    Raises:
        UserError: for an unusable run, a text that it cannot say, and a model that has diverged.
    """
    synthesizer = Synthesizer.from_run(run, config)
    checkpoint = find_checkpoint(run, config.checkpoint).name
    name = f"evaluating {run}"
    told = None if progress is None else lambda done, of: progress(name, done, of)
    part = material.part(team.share)
    judged = judge_speech(synthesizer, part, pitch=config.pitch, told=told)
    judged = _joined(team.gathered("what the others measure", judged))
    return Evaluation(
        run=str(run),
        checkpoint=checkpoint,
        rows=judged.rows,
        spoken=judged.spoken,
        mel=synthesizer.mel,
        frames_a_step=synthesizer.model.config.reduction_factor,
        vocoder=synthesizer.vocoder,
        forced=judged.forced,
    )


@dataclass(frozen=True)
class Judged:
    """Rows of figures, an utterance each, and what they are about."""

    rows: list[Row]
    spoken: list[Spoken]
    forced: list[Tensor] | None
    """``[T, M]`` of each recording, teacher-forced; None without recordings."""


def judge_speech(
    synthesizer: Synthesizer,
    material: Material,
    *,
    pitch: bool,
    told: Callable[[int, int], None] | None = None,
) -> Judged:
    """Let ``synthesizer`` speak ``material`` and judge it; ``told`` how many are done, of how many.

    Raises:
        UserError: for a text that it cannot say, and a model that has diverged.
    """
    scripts = [synthesizer.script(request) for request in material.requests]
    forced = _teacher_forced(synthesizer, material)
    rows, all_spoken = [], []
    for i, spoken in enumerate(synthesizer.speak_scripts(scripts)):
        row = _judged(spoken, synthesizer.mel)
        if material.recordings is not None:
            row |= _compared(
                spoken, material.recordings[i], forced[i], synthesizer.mel, pitch=pitch
            )
        rows.append({key: _rounded(value) for key, value in row.items()})
        all_spoken.append(spoken)
        if told is not None:
            told(i + 1, len(scripts))
    return Judged(rows, all_spoken, forced if material.recordings is not None else None)


def _joined(parts: list[Judged]) -> Judged:
    """The whole of what each process judged a share of."""
    forced = [part.forced for part in parts if part.forced is not None]
    return Judged(
        interleaved([part.rows for part in parts]),
        interleaved([part.spoken for part in parts]),
        interleaved(forced) if forced else None,
    )


@torch.no_grad()
def _teacher_forced(synthesizer: Synthesizer, material: Material) -> list[Tensor]:
    """``[T, M]`` of each recording as the model says it when it is fed the recording."""
    model, size = synthesizer.model, synthesizer.config.batch_size
    device = model.mel_mean.device
    items = _items(synthesizer, material)
    mels: list[Tensor] = []
    for first in range(0, len(items), size):
        batch = collate(items[first : first + size]).to(device)
        noise = PrenetNoise(NOISE_SEED, batch.indices)
        with evaluating(model):
            out = teacher_forced(model, batch, noise).mel.cpu()
        mels += [out[i, :frames] for i, frames in enumerate(batch.mel_lengths.tolist())]
    return mels


def _items(synthesizer: Synthesizer, material: Material) -> list[Item]:
    """The recordings as the model's own tokenizer and list of speakers see them."""
    texts = [request.text for request in material.requests]
    numbers = synthesizer.tokenizer.encode_many(texts, drop_unknown=True)
    return [
        Item(
            index=i if material.numbers is None else material.numbers[i],
            id=f"{i}",
            text=request.text,
            symbols=torch.tensor(numbers[i]),
            mel=recording.mel,
            speaker=synthesizer.script(request).parts[0].speaker,
        )
        for i, (request, recording) in enumerate(
            zip(material.requests, material.recordings or (), strict=bool(material.recordings))
        )
    ]


def _judged(spoken: Spoken, mel: MelConfig) -> Row:
    """What can be said of an utterance without knowing how it should sound."""
    faults = _faults(spoken, mel.hop_length / mel.sample_rate)
    seconds = len(spoken.audio) / mel.sample_rate
    steps = sum(len(part.alignment) for part in spoken.parts)
    focus = sum(focus_rate(part.alignment) * len(part.alignment) for part in spoken.parts)
    request = spoken.request
    return {
        "text": request.text,
        **({} if request.id is None else {"id": request.id}),
        **({} if request.speaker is None else {"speaker": request.speaker}),
        "seconds": seconds,
        "stopped_by": str(spoken.stopped_by),
        "faults": faults,
        "failed": float(bool(faults)),
        "stopped": float(spoken.stopped_by == "stop"),
        "unaligned": 1 - spoken.coverage,
        "focus": focus / steps,
        "real_time_factor": spoken.seconds_spent / seconds,
    }


def _faults(spoken: Spoken, frame_s: float) -> list[Row]:
    """Those of all parts, timed within the utterance."""
    found = []
    for part, first in zip(spoken.parts, spoken.starts, strict=True):
        for fault in part.faults:
            begin, end = (round(first * frame_s + t, 3) for t in (fault.start_s, fault.end_s))
            found.append(asdict(replace(fault, start_s=begin, end_s=end)))
    return found


def _compared(
    spoken: Spoken, recording: Recording, forced: Tensor, mel: MelConfig, *, pitch: bool
) -> Row:
    """How far both passes are from the recording."""
    off = abs(len(spoken.mel) - len(recording.mel)) * mel.hop_length / mel.sample_rate
    row: Row = {"stop_error_s": off, **distances(spoken.mel, forced, recording.mel)}
    if pitch:
        true = (recording.audio(mel.sample_rate), recording.mel)
        error = pitch_error((spoken.audio, spoken.mel), true, mel)
        row |= {"f0_semitones": error.semitones, "voicing_error": error.voicing}
    return row


def _rounded(value: object) -> object:
    """Numbers for a file; those that are not finite are None."""
    if not isinstance(value, float):
        return value
    return round(value, DIGITS) if abs(value) < float("inf") else None


def kinds_of(rows: Sequence[Row]) -> dict[str, int]:
    """Utterances with each kind of fault, the most frequent first."""
    found = [str(kind) for row in rows for kind in {fault["kind"] for fault in row["faults"]}]
    counts = Counter(sorted(found))  # sorted, for ties come in the order of their first
    return dict(counts.most_common())
