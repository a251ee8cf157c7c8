"""Laws of the edit distance and of what it is made of."""

from hypothesis import given
from hypothesis import strategies as st

from profforce.evaluation.edits import DELETED, INSERTED, SUBSTITUTED, align, edits_between

WORDS = st.lists(st.sampled_from("abc"), max_size=8)


def distance(a: list[str], b: list[str]) -> int:
    """The textbook's recursion, row by row."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (x != y)))
        row = new
    return row[-1]


@given(WORDS, WORDS)
def test_the_total_is_the_edit_distance(a: list[str], b: list[str]) -> None:
    edits = edits_between(a, b)
    assert edits.total == distance(a, b)
    assert edits.deleted - edits.inserted == len(a) - len(b)
    assert edits.repeated <= edits.inserted
    assert edits.missing_tail <= edits.deleted and edits.extra_tail <= edits.inserted


@given(WORDS, WORDS)
def test_the_operations_make_the_one_of_the_other(a: list[str], b: list[str]) -> None:
    made: list[str] = []
    used = 0
    for operation in align(a, b):
        assert operation.expected == used and operation.heard == len(made)
        used += operation.kind != INSERTED
        if operation.kind in (INSERTED, SUBSTITUTED):
            made.append(b[operation.heard])
        elif operation.kind != DELETED:
            made.append(a[operation.expected])
    assert made == b and used == len(a)


@given(WORDS, WORDS)
def test_swapping_the_sides_swaps_deletion_and_insertion(a: list[str], b: list[str]) -> None:
    there, back = edits_between(a, b), edits_between(b, a)
    assert there.total == back.total


@given(st.permutations("abcdefgh"), st.integers(0, 7), st.integers(1, 8))
def test_a_block_said_twice_is_a_repetition(letters: list[str], start: int, size: int) -> None:
    stop = min(start + size, len(letters))
    edits = edits_between(letters, [*letters[:stop], *letters[start:stop], *letters[stop:]])
    assert edits.repeated == edits.inserted == edits.total == stop - start
    assert edits.extra_tail == (stop - start if stop == len(letters) else 0)


@given(st.permutations("abcdefgh"), st.integers(0, 7), st.integers(1, 8))
def test_a_block_left_out_is_deleted(letters: list[str], start: int, size: int) -> None:
    stop = min(start + size, len(letters))
    edits = edits_between(letters, letters[:start] + letters[stop:])
    assert edits.deleted == edits.total == stop - start
    assert edits.missing_tail == (stop - start if stop == len(letters) else 0)


def test_babble_is_inserted_but_not_repeated() -> None:
    edits = edits_between(list("abcd"), list("abxyzcd"))
    assert (edits.inserted, edits.repeated, edits.total) == (3, 0, 3)


def test_what_is_said_four_times_is_repeated() -> None:
    edits = edits_between(list("abcd"), list("abababcd") + ["d"] * 3)
    assert (edits.inserted, edits.repeated, edits.extra_tail) == (7, 7, 3)
