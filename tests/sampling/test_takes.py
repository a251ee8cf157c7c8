"""Faults of a model are noticed, tried again, counted; the best take is kept."""

import math
from dataclasses import replace

import pytest
import torch

from profforce.sampling.faults import FaultKind
from profforce.sampling.stopping import StoppedBy
from tests.sampling.scripted import MEL, SPOILS, STEPS_A_SYMBOL, parts_of, scripted

TEXTS = [
    "the first of the sentences that are spoken here",
    "another one which is not quite as short as that",
    "and the last of all of them is this one at the end",
]
EXPECTED = {
    "skip": FaultKind.skipping,
    "repeat": FaultKind.repeating,
    "hang": FaultKind.repeating,
    "wander": FaultKind.no_stop,
    "early": FaultKind.early_stop,
    "blip": FaultKind.early_stop,
    "deaf": FaultKind.no_stop,
    "nan": FaultKind.not_finite,
    "mute": FaultKind.silence,
}


def test_a_model_that_speaks_well_is_taken_at_once() -> None:
    taker, mirror, scripter = scripted("", lambda identity, held: False)
    parts = parts_of(scripter, TEXTS)
    for taken, part in zip(taker(parts), parts, strict=True):
        assert (taken.faults, taken.retries, taken.held) == ([], 0, False)
        assert taken.stopped_by is StoppedBy.stop
        frames = 2 * STEPS_A_SYMBOL * len(part.numbers) - 1  # the first that the stop head ends
        assert len(taken.mel) == len(taken.stop_probability) == frames + 3
        assert taken.alignments.shape[1:] == (-(-(frames + 3) // 2), len(part.numbers))
    assert len(mirror.runs) == 2  # to the stop, and on to the tail


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_fault_is_noticed_and_said(spoil: str) -> None:
    taker, _, scripter = scripted(spoil, lambda identity, held: True, retries=0)
    for taken in taker(parts_of(scripter, TEXTS)):
        assert EXPECTED[spoil] in {fault.kind for fault in taken.faults}
        assert (taken.retries, taken.held) == (0, False)
        assert taken.mel.isfinite().all()


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("spoil", SPOILS)
def test_other_noise_is_tried_until_it_is_well(spoil: str, failures: int) -> None:
    taker, mirror, scripter = scripted(spoil, lambda identity, held: identity in bad)
    parts = parts_of(scripter, TEXTS)
    bad = {parts[1].identity}
    taker(parts[1:2])
    for _ in range(failures - 1):
        bad |= {row for run in mirror.runs for row in run}
        mirror.runs.clear()
        taker(parts[1:2])
    first, second, third = taker(parts)
    assert (first.retries, first.faults, third.retries, third.faults) == (0, [], 0, [])
    assert (second.retries, second.faults, second.held) == (failures, [], False)


@pytest.mark.parametrize("spoil", SPOILS)
def test_attention_is_held_at_last(spoil: str) -> None:
    taker, _, scripter = scripted(spoil, lambda identity, held: not held, retries=1)
    for taken in taker(parts_of(scripter, TEXTS)):
        assert (taken.retries, taken.faults, taken.held) == (2, [], True)


def test_no_window_no_such_try_and_the_first_of_equals_is_kept() -> None:
    options = {"retries": 2, "attention_window": None}
    taker, mirror, scripter = scripted("skip", lambda identity, held: True, **options)
    (taken,) = taker(parts_of(scripter, TEXTS[:1]))
    assert (taken.retries, taken.held) == (2, False) and taken.faults
    assert len({run[0] for run in mirror.runs}) == 3


def test_without_dropout_another_seed_is_not_tried() -> None:
    taker, _, scripter = scripted("skip", lambda identity, held: True, retries=5)
    taker.model.prenet.dropout = 0.0
    (taken,) = taker(parts_of(scripter, TEXTS[:1]))
    assert taken.retries == 1


def test_noise_of_an_attempt_is_that_of_its_text_and_number() -> None:
    def identities(texts: list[str]) -> dict[str, list[int]]:
        taker, mirror, scripter = scripted("skip", lambda identity, held: True)
        parts = parts_of(scripter, texts)
        taker(parts)
        seen = {text: [run[i] for run in mirror.runs] for i, text in enumerate(texts)}
        assert len({row for run in mirror.runs for row in run}) == 4 * len(texts)
        return seen

    together = identities(TEXTS)
    assert identities(TEXTS[::-1]) == together
    for text in TEXTS:
        assert identities([text]) == {text: together[text]}


def test_a_stop_that_is_too_soon_to_be_true_is_not_heard() -> None:
    taker, mirror, scripter = scripted("early", lambda identity, held: False, retries=0)
    parts = parts_of(scripter, TEXTS[:1])
    honest = mirror._row

    def blip(
        t: int, num_symbols: int, spoil: str, mel: object, stop: object, *rest: object
    ) -> None:
        honest(t, num_symbols, spoil, mel, stop, *rest)  # type: ignore[arg-type]
        if t == 3:
            stop[:] = 6.0  # type: ignore[index]

    mirror._row = blip  # type: ignore[method-assign, assignment]
    (taken,) = taker(parts)
    assert taken.faults == [] and taken.stopped_by is StoppedBy.stop
    assert len(taken.mel) == 4 * len(parts[0].numbers) + 2


def test_a_stop_that_is_always_on_is_a_fault() -> None:
    taker, _, scripter = scripted("", lambda identity, held: False, retries=0, stop_threshold=1e-3)
    parts = parts_of(scripter, TEXTS[:1])
    (taken,) = taker(parts)
    assert taken.stopped_by is StoppedBy.stop
    assert FaultKind.early_stop in {fault.kind for fault in taken.faults}
    assert len(taken.mel) * MEL.hop_length / MEL.sample_rate < 0.03 * len(parts[0].numbers)


def test_attention_that_is_held_is_not_stopped_before_the_end_of_the_text() -> None:
    taker, _, scripter = scripted("blip", lambda identity, held: True, retries=1)
    for taken, part in zip(taker(parts := parts_of(scripter, TEXTS)), parts, strict=True):
        assert taken.held and taken.faults == [] and taken.stopped_by is StoppedBy.stop
        assert len(taken.mel) == 4 * len(part.numbers) + 2


def test_a_run_that_never_stops_is_cut_at_the_end_of_its_speech() -> None:
    taker, _, scripter = scripted("wander", lambda identity, held: True, retries=0)
    parts = parts_of(scripter, TEXTS)
    for taken, part in zip(taker(parts), parts, strict=True):
        assert taken.stopped_by is StoppedBy.end_of_speech
        assert [fault.kind for fault in taken.faults] == [FaultKind.no_stop]
        spoken_s = len(part.numbers) * STEPS_A_SYMBOL * 2 * MEL.hop_length / MEL.sample_rate
        got_s = len(taken.mel) * MEL.hop_length / MEL.sample_rate
        assert got_s == pytest.approx(spoken_s, abs=0.4)


def test_frames_that_are_not_finite_become_silence() -> None:
    taker, _, scripter = scripted("nan", lambda identity, held: True, retries=0)
    (taken,) = taker(parts_of(scripter, TEXTS[:1]))
    silent = taken.mel[:, 0] == torch.tensor(math.log(MEL.log_floor), dtype=torch.float32)
    assert 0 < int(silent.sum()) <= 4
    assert taken.stopped_by is StoppedBy.stop


def test_a_take_with_fewer_faults_is_better_and_one_that_is_not_finite_the_worst() -> None:
    def of(spoil: str) -> object:
        taker, _, scripter = scripted(spoil, lambda identity, held: True, retries=0)
        return taker(parts_of(scripter, TEXTS[:1]))[0]

    good, skips, broken = of(""), of("skip"), of("nan")
    assert good.better_than(skips) and skips.better_than(broken)  # type: ignore[attr-defined]
    assert not good.better_than(good)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("counts", "kept"), [((2, 3, 2, 4), 0), ((3, 2, 1, 2), 2), ((2, 2, 2, 1), 3)]
)
def test_the_take_with_the_fewest_faults_is_kept_the_first_of_equals(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], kept: int
) -> None:
    taker, _, scripter = scripted("deaf", lambda identity, held: True, retries=0)
    parts = parts_of(scripter, TEXTS[:1])
    (one,) = taker(parts)
    takes = [
        replace(one, faults=one.faults[:1] * count, mel=torch.full((3, 20), float(number)))
        for number, count in enumerate(counts)
    ]
    taker.config = replace(taker.config, retries=2)
    monkeypatch.setattr(taker, "_takes", lambda parts, number, window: [takes[number]])
    (best,) = taker(parts)
    assert float(best.mel[0, 0]) == kept and best.retries == 3
