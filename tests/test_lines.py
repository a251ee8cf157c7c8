"""Texts to speak: what is read, what is refused and where the fault is said to be."""

import io
import sys
from pathlib import Path

import pytest

from profforce.errors import UserError
from profforce.lines import texts_to_speak


def test_options_are_taken_as_they_are() -> None:
    assert texts_to_speak(["a", "b"], None) == ["a", "b"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_that_are_not_blank(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "t.txt").write_bytes(mark + "ä b\r\n\n  \nc".encode())
    assert texts_to_speak(None, tmp_path / "t.txt") == ["ä b", "c"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert texts_to_speak(None, Path("-")) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(UserError, match=r"^standard input:1: is not UTF-8; got byte 0xff at 0"):
        texts_to_speak(None, Path("-"))


@pytest.mark.parametrize(("mark", "position"), [(b"", 4), (b"\xef\xbb\xbf", 7)])
def test_the_fault_is_counted_from_the_start_of_the_file(
    tmp_path: Path, mark: bytes, position: int
) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(mark + b"ba\nb\xff")
    with pytest.raises(UserError, match=rf":2: is not UTF-8; got byte 0xff at {position};"):
        texts_to_speak(None, path)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match="holds no text"):
        texts_to_speak(None, tmp_path / "t.txt")


def test_both_neither_and_unreadable(tmp_path: Path) -> None:
    for given, source in ((None, None), ([], None), (["a"], Path("t.txt"))):
        with pytest.raises(UserError, match="either --text TEXT or --input FILE"):
            texts_to_speak(given, source)
    for source in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="cannot be read"):
            texts_to_speak(None, source)
