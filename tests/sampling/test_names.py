"""Names of files: safe on every system, the same whatever else is spoken."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.errors import UserError
from profforce.sampling.names import RESERVED, slug, stems
from profforce.sampling.request import Request

SAFE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
IDS = st.text(min_size=1, max_size=120) | st.sampled_from(
    ["con", "NUL", "Lpt1", "../a", "/etc/passwd", "a.", "a ", "A", "a", "..", "C:\\x", "-rf", "ä"]
)


def asked(*ids: str | None) -> list[Request]:
    return [Request("Some words.", f"text {n}", identity) for n, identity in enumerate(ids, 1)]


@settings(max_examples=200, deadline=None)
@given(st.lists(IDS, max_size=6, unique=True))
def test_any_ids_give_safe_and_different_names(ids: list[str]) -> None:
    names = stems(asked(*ids))
    assert len({name.casefold() for name in names}) == len(ids)
    for name in names:
        assert name and set(name) <= SAFE and len(name) <= 100
        assert not name.startswith("-") and name.casefold() not in RESERVED


@settings(max_examples=100, deadline=None)
@given(st.lists(IDS, min_size=2, max_size=5, unique_by=str.casefold))
def test_the_name_of_an_id_depends_on_the_id_alone(ids: list[str]) -> None:
    together = dict(zip(ids, stems(asked(*ids)), strict=True))
    assert together == {identity: stems(asked(identity))[0] for identity in ids}
    assert together == dict(zip(ids[::-1], stems(asked(*ids[::-1])), strict=True))


def test_safe_ids_stay_as_they_are_and_texts_without_one_are_numbered() -> None:
    assert stems(asked("LJ001-0001", None, "x_2")) == ["LJ001-0001", "0002-some-words", "x_2"]


def test_what_is_readable_of_an_unsafe_id_stays() -> None:
    for identity, start in (
        ("NUL", "nul-"),
        ("../Zwölf", "zwolf-"),
        ("x" * 300, "xxxx"),
        ("?", "t"),
    ):
        assert stems(asked(identity))[0].startswith(start)
    small, large = stems(asked("ab", "AB"))
    assert small.startswith("ab-") and large.startswith("ab-") and small != large


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (("a", "a"), "the id is there twice; got 'a', as in text 1; exp"),
        (("A/b", "A/b"), "the id is there twice; got 'A/b', as in text 1; exp"),
        (
            ("0002-some-words", None),
            "its files would be called as another text's; got '0002-some-words', as in text 1; exp",
        ),
    ],
    ids=["id", "unsafe", "number"],
)
def test_the_same_name_twice_is_one_line_with_both_places(
    ids: tuple[str | None, ...], message: str
) -> None:
    with pytest.raises(UserError, match=f"^text 2: {message}"):
        stems(asked(*ids))


def test_names_of_files_keep_their_letters() -> None:
    assert slug("Zwölf Äpfel for $5.") == "zwolf-apfel-for-5"
    assert slug("Привет!") == "privet"
    assert slug("!?") == "text"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_slugs_are_safe_file_names(text: str) -> None:
    name = slug(text)
    assert 0 < len(name) <= 40
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not name.startswith("-") and not name.endswith("-")
