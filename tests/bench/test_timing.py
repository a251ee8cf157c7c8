"""Times are taken in turn."""

import time

import pytest
import torch

from profforce.bench.timing import interleave, spread

CPU = torch.device("cpu")


def test_every_round_takes_every_form_once_in_a_new_order() -> None:
    called: list[str] = []
    forms = {name: (lambda name=name: called.append(name)) for name in "abcd"}
    ticks: list[None] = []
    times = interleave(
        forms, repeats=6, warmup=2, device=CPU, seed=1, tick=lambda: ticks.append(None)
    )
    rounds = [called[i : i + 4] for i in range(0, len(called), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list("abcd") for order in rounds)
    assert len({tuple(order) for order in rounds}) > 2
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys("abcd", 6)
    assert len(ticks) == 32


def test_a_slow_spell_falls_on_all_forms() -> None:
    """The machine is slow for some rounds: no form's median alone may show it."""
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.004 if calls > 8 else 0.001)

    times = interleave({"a": work, "b": work}, repeats=9, warmup=0, device=CPU)
    assert spread(times["a"])[0] == pytest.approx(spread(times["b"])[0], rel=0.7)


def test_times_are_milliseconds() -> None:
    (values,) = interleave(
        {"a": lambda: time.sleep(0.02)}, repeats=2, warmup=0, device=CPU
    ).values()
    assert all(20 <= value < 500 for value in values)


def test_median_and_quartiles() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == (3.0, 2.0)
    assert spread([7.0]) == (7.0, 0.0)
