"""Texts that are divided among processes come back in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profforce.app import main
from profforce.commands.together import in_order
from profforce.training.distributed import ALONE, Team, interleaved


@dataclass(frozen=True)
class Pretended(Team):
    """One of several processes whose others' answers are known beforehand."""

    others: Sequence[Sequence[int]] = field(default=())
    at_once: int = 1

    def gathered(self, what: str, value: Any) -> list[Any]:
        taken = self.rounds.setdefault("n", 0)
        self.rounds["n"] += 1
        start = taken * self.at_once
        answers = [list(other[start : start + self.at_once]) for other in self.others]
        assert value == answers[self.rank]
        return answers

    @property
    def rounds(self) -> dict[str, int]:
        return self.__dict__.setdefault("_rounds", {})


@given(st.integers(0, 40), st.integers(1, 5))
def test_shares_laid_into_each_other_are_the_whole(count: int, size: int) -> None:
    whole = list(range(count))
    assert interleaved([whole[Team(rank, size).share] for rank in range(size)]) == whole


@given(st.integers(1, 40), st.integers(2, 5), st.integers(1, 7))
def test_the_first_process_gives_all_rows_in_order_and_the_others_none(
    count: int, size: int, at_once: int
) -> None:
    whole = list(range(count))
    parts = [whole[Team(rank, size).share] for rank in range(size)]
    for rank in range(size):
        team = Pretended(rank, size, others=parts, at_once=at_once)
        rows = list(in_order(team, iter(parts[rank]), count, at_once))
        assert rows == (whole if rank == 0 else [])
        assert team.rounds["n"] == -(-len(parts[0]) // at_once)  # as often in each


def test_alone_rows_come_as_they_are_made() -> None:
    made = iter(range(3))
    rows = in_order(ALONE, made, 3, 32)
    assert next(rows) == 0 and next(made) == 1


def test_a_stream_is_refused_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert main(["sample", "--run", "r", "--text", "a", "--out", "o", "--stream"]) == 2
    assert "a stream comes from one process" in capfd.readouterr().err
