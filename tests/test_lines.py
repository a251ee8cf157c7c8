"""Texts to speak: what is read, what is refused and where the fault is said to be."""

import io
import sys
from pathlib import Path

import pytest

from profforce.errors import UserError
from profforce.lines import texts_to_speak
from profforce.sampling.request import Request


def test_options_are_taken_as_they_are() -> None:
    assert texts_to_speak(["a", " b"], None) == [Request("a", "text 1"), Request(" b", "text 2")]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_that_are_not_blank(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(mark + "ä b\r\n\n  \nc\rd\x0be\u2028f\n".encode())
    assert texts_to_speak(None, path) == [
        Request("ä b", f"{path}:1"),
        Request("c", f"{path}:4"),
        Request("d\x0be\u2028f", f"{path}:5"),
    ]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert texts_to_speak(None, Path("-")) == [
        Request("one", "standard input:1"),
        Request("two", "standard input:2"),
    ]
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


@pytest.mark.parametrize("name", ["t.jsonl", "t.NDJSON", "-"])
def test_an_object_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rows = '\n{"text": "Hi\\nthere.", "id": "a", "speaker": "ann"}\n{"text": "Ho.", "audio": 1}\n'
    path = tmp_path / name if name != "-" else Path("-")
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    else:
        path.write_text(rows, encoding="utf-8")
    where = "standard input" if name == "-" else str(path)
    assert texts_to_speak(None, path) == [
        Request("Hi\nthere.", f"{where}:2", "a", "ann"),
        Request("Ho.", f"{where}:3"),
    ]


def test_a_text_that_looks_like_json_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text('{"text": "Hi"}', encoding="utf-8")
    assert texts_to_speak(None, path)[0].text == '{"text": "Hi"}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r":2: is not JSON; got"),
        ("[" * 100_000, ":2: is not JSON"),
        ('["a"]', r":2: has no text; got \["),
        ('{"id": "a"}', ":2: has no text"),
        ('{"text": 3}', ":2: text is not a string; got 3"),
        ('{"text": null}', ":2: text is not a string; got null"),
        ('{"text": "a", "id": 3}', ":2: id is not a string; got 3"),
        ('{"text": "a", "id": " "}', ":2: the id is empty"),
        ('{"text": "a", "speeker": "b"}', ":2: unknown key 'speeker'; did you mean 'speaker'"),
        ('{"text": "a\\ud800"}', r":2: is no valid Unicode; got half a character, U\+D800, at 2"),
    ],
    ids=range(10),
)
def test_lines_that_are_no_such_objects(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match=said) as err:
        texts_to_speak(None, path)
    assert "\n" not in str(err.value) and len(str(err.value)) < 600


def test_bytes_of_the_command_line_that_are_no_text() -> None:
    with pytest.raises(UserError, match=r"^text 2: is no valid Unicode; got half a character"):
        texts_to_speak(["a", "\udcff"], None)
