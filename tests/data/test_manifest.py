import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.data.manifest import corpus_folder, read_manifest
from profforce.errors import UserError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"RIFF")


def metadata(folder: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    (folder / "metadata.csv").write_bytes(raw)
    return folder


def jsonl(folder: Path, *rows: object) -> Path:
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)
    (folder / "manifest.jsonl").write_text(text, encoding="utf-8")
    return folder


TEXT = st.text(
    st.characters(exclude_categories=("C", "Z"), exclude_characters="|\ufeff"), min_size=1
)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    touch(folder, *(f"wavs/u{k}.wav" for k in range(len(rows))))
    metadata(folder, "".join(f"u{k}|{a}|{b}\n" for k, (a, b) in enumerate(rows)))
    found = read_manifest(folder)
    assert [(u.id, u.text, u.spoken) for u in found] == [
        (f"u{k}", a, b) for k, (a, b) in enumerate(rows)
    ]
    (folder / "metadata.csv").unlink()
    jsonl(
        folder,
        *(
            {"audio": f"wavs/u{k}.wav", "text": a, "normalized_text": b}
            for k, (a, b) in enumerate(rows)
        ),
    )
    assert [(u.id, u.audio, u.text, u.spoken) for u in read_manifest(folder)] == [
        (u.id, u.audio, u.text, u.spoken) for u in found
    ]


def test_marks_line_ends_blank_lines_and_quotes_are_tolerated(tmp_path: Path) -> None:
    touch(tmp_path, "wavs/a.wav", "wavs/b.wav")
    metadata(tmp_path, b'\xef\xbb\xbfa|"Quoted, he said.\r\n\r\n  \nb|Two\r\n')
    first, second = read_manifest(tmp_path)
    assert (first.id, first.text) == ("a", '"Quoted, he said.')
    assert second.text == "Two" and second.where.endswith("metadata.csv:4")


@pytest.mark.parametrize("header", ["id|text", "File|Transcription", "path|text|normalized_text"])
def test_a_header_is_recognised(tmp_path: Path, header: str) -> None:
    touch(tmp_path, "wavs/a.wav")
    row = "a|Hello" + ("|hello" if header.count("|") == 2 else "")
    assert [u.id for u in read_manifest(metadata(tmp_path, f"{header}\n{row}\n"))] == ["a"]


def test_what_looks_like_a_header_but_has_audio_is_an_utterance(tmp_path: Path) -> None:
    touch(tmp_path, "wavs/id.wav")
    assert [u.text for u in read_manifest(metadata(tmp_path, "id|text\n"))] == ["text"]


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("a", "wavs/a.wav", "a"),
        ("a", "a.flac", "a"),
        ("wavs/a.wav", "wavs/a.wav", "a"),
        ("sub\\a.wav", "sub/a.wav", "sub/a"),
        ("v1.2", "wavs/v1.2.wav", "v1.2"),
    ],
)
def test_audio_is_found_by_id_or_path(tmp_path: Path, name: str, file: str, expected: str) -> None:
    touch(tmp_path, file)
    (utterance,) = read_manifest(metadata(tmp_path, f"{name}|Hello\n"))
    assert (utterance.id, utterance.audio) == (expected, tmp_path / file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a|One\nb|Two|three\n", r"metadata.csv:2: wrong number of columns; got 3; expected 2 sep"),
        ("a,One\n", r"metadata.csv:1: wrong number of columns; got 1; expected id\|text or"),
        ("a|One\nb| \n", r"metadata.csv:2: empty transcript"),
        ("a|One\n\na|Two\n", r"metadata.csv:3: the id 'a' occurs twice; .*metadata.csv:1"),
        ("a|One\nwavs/a.wav|Two\n", r"metadata.csv:2: the id 'a' occurs twice"),
        ("a|One\nc|Two\n", r"metadata.csv:2: no such audio file; got 'c'; expected .*c\.wav"),
        ("a|One\n../a.wav|Two\n", r"metadata.csv:2: the audio path leaves the corpus folder"),
        ("/a.wav|Two\n", r"metadata.csv:1: the audio path leaves .*got '/a.wav'"),
        ("C:\\a.wav|Two\n", r"metadata.csv:1: the audio path leaves"),
        ("|Two\n", r"metadata.csv:1: no audio file named"),
        (b"a|One\nb|Caf\xe9\n", r"metadata.csv:2: the line is not UTF-8; got byte 0xe9"),
        ("\n\n", r"metadata.csv: the manifest lists no utterance"),
    ],
)
def test_metadata_errors_name_the_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    touch(tmp_path, "wavs/a.wav", "wavs/b.wav")
    with pytest.raises(UserError, match=message):
        read_manifest(metadata(tmp_path, content))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"manifest.jsonl:2: not JSON"),
        ("[1]", r"manifest.jsonl:2: not a JSON object; got list"),
        ({"text": "Hi"}, r"manifest.jsonl:2: 'audio' is missing; got the keys text"),
        ({"audio": "wavs/b.wav", "text": 3}, r"manifest.jsonl:2: 'text' is not a text; got 3"),
        ({"audio": "wavs/b.wav", "text": ""}, r"manifest.jsonl:2: empty transcript"),
        ({"audio": "wavs/c.wav", "text": "Hi"}, r"manifest.jsonl:2: no such audio file"),
        ({"audio": "wavs/../../b.wav", "text": "Hi"}, r"manifest.jsonl:2: the audio path leaves"),
    ],
)
def test_jsonl_errors_name_the_line(tmp_path: Path, row: object, message: str) -> None:
    touch(tmp_path, "wavs/a.wav", "wavs/b.wav")
    with pytest.raises(UserError, match=message):
        read_manifest(jsonl(tmp_path, {"audio": "wavs/a.wav", "text": "One"}, row))


def test_jsonl_takes_id_speaker_and_unknown_keys(tmp_path: Path) -> None:
    touch(tmp_path, "x/a.wav")
    row = {"audio": "x/a.wav", "text": "One", "id": "mine", "speaker": "ann", "duration": 1.5}
    (utterance,) = read_manifest(jsonl(tmp_path, row))
    assert (utterance.id, utterance.speaker, utterance.spoken) == ("mine", "ann", "One")


def test_no_manifest_or_two(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no corpus here; expected metadata.csv or manifest"):
        read_manifest(tmp_path)
    metadata(tmp_path, "a|b\n")
    jsonl(tmp_path, {})
    with pytest.raises(UserError, match="more than one manifest"):
        read_manifest(tmp_path)


def test_corpus_json_may_point_elsewhere(tmp_path: Path) -> None:
    assert corpus_folder(tmp_path) == tmp_path
    (tmp_path / "corpus.json").write_text('{"location": "inner"}')
    assert corpus_folder(tmp_path) == tmp_path / "inner"
    (tmp_path / "corpus.json").write_text("[")
    with pytest.raises(UserError, match=r"corpus.json: cannot read the corpus description"):
        corpus_folder(tmp_path)
