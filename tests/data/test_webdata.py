"""Tar files as a corpus: the same items as the folder they were packed from, defects by name."""

import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from profforce.audio.files import read_audio
from profforce.config import DataConfig, MelConfig, TextConfig
from profforce.data import table
from profforce.data.corpus import Corpus, load_corpus
from profforce.data.features import chunks_of
from profforce.data.loading import accepted, loader
from profforce.data.sampler import BucketSampler
from profforce.data.webdata_pack import pack
from profforce.errors import UserError
from tests.data.conftest import MakeCorpus

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEXTS = [f"sentence {word}." for word in NUMBERS]
Change = Any


def load(shards: Path | str, **changes: Change) -> Corpus:
    settings = {"valid_fraction": 0.4, "trim_db": None, **changes}
    return load_corpus(DataConfig(shards=str(shards), **settings), TextConfig(), MelConfig())


def packed(root: Path, out: Path, samples: int = 4) -> Path:
    pack(DataConfig(root=str(root)), MelConfig(), out, samples=samples, seed=0)
    return out


def tone(seconds: float = 0.5, hz: float = 220.0, kind: str = "WAV", rate: int = 22050) -> bytes:
    time = np.arange(round(seconds * rate)) / rate
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * hz * time), rate, format=kind)
    return file.getvalue()


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def many(count: int = 9, **last: bytes) -> dict[str, bytes]:
    files = {}
    for k in range(count):
        files[f"k{k}.wav"] = tone(hz=200.0 + 10 * k)
        files[f"k{k}.txt"] = TEXTS[k].encode()
    return files | {name.replace("_", "."): content for name, content in last.items()}


def test_packed_and_read_is_the_same_corpus(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS, seconds=[0.3 + 0.05 * k for k in range(9)])
    data = DataConfig(root=str(root), valid_fraction=0.4, trim_db=None)
    folder = load_corpus(data, TextConfig(), MelConfig())
    shards = load(packed(root, tmp_path / "tars"))
    assert len(list((tmp_path / "tars").glob("*.tar"))) == 3
    for ours, theirs in ((shards.train, folder.train), (shards.valid, folder.valid)):
        wanted = {theirs.utterances[k].id: k for k in range(len(theirs))}
        assert {u.id for u in ours.utterances} == set(wanted)
        for k in range(len(ours)):
            item = theirs[wanted[ours.utterances[k].id]]
            assert torch.equal(ours[k].symbols, item.symbols) and ours[k].text == item.text
            torch.testing.assert_close(ours[k].mel, item.mel)
            assert len(ours[k].mel) == ours.num_frames[k]
    assert shards.train.mel_statistics()[0].shape == (80,)


def test_trimming_shortens_and_never_lengthens(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS, seconds=0.5)
    for wav in (root / "wavs").iterdir():
        audio, rate = soundfile.read(wav)
        soundfile.write(wav, np.concatenate([np.zeros(9000), audio, np.zeros(5000)]), rate)
    train = load(packed(root, tmp_path / "tars"), trim_db=40.0).train
    assert all(len(train[k].mel) < train.num_frames[k] for k in range(len(train)))


def test_packing_is_the_same_everywhere(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS)
    first, second = packed(root, tmp_path / "a"), packed(root, tmp_path / "b")
    for tar in first.iterdir():
        assert tar.read_bytes() == (second / tar.name).read_bytes()
    with pytest.raises(UserError, match=r"a: holds tar files already; name another folder"):
        packed(root, first)
    assert sorted(path.name for path in first.iterdir()) == [
        f"shard-00000{k}.tar" for k in range(3)
    ]


def test_speakers_ids_and_normalized_texts_travel(make_corpus: MakeCorpus, tmp_path: Path) -> None:
    root = make_corpus(TEXTS)
    (root / "metadata.csv").unlink()
    rows = [
        {"audio": f"wavs/u{k}.wav", "id": f"a.b/{k}", "text": f"No. {k}", "normalized_text": text}
        | {"speaker": "zoe" if k % 2 else "\u00e9mile"}
        for k, text in enumerate(TEXTS)
    ]
    (root / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = load(packed(root, tmp_path / "tars"))
    assert corpus.speakers == ("zoe", "\u00e9mile")
    both = [*corpus.train.utterances, *corpus.valid.utterances]
    assert {(u.id, u.text, u.spoken, u.speaker) for u in both} == {
        (row["id"], row["text"], row["normalized_text"], row["speaker"]) for row in rows
    }


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_every_format_and_layout(tmp_path: Path, kind: str) -> None:
    files = {}
    for k, text in enumerate(TEXTS):
        files[f"deep/k{k}.{kind.lower()}"] = tone(hz=200.0 + 10 * k, kind=kind, rate=16000)
        files[f"deep/k{k}.json"] = json.dumps({"text": text}).encode()
        files[f"deep/k{k}.cls"] = b"3"
    write_tar(tmp_path / "part-0.tar", files)
    train = load(tmp_path / "part-*.tar").train
    assert train.utterances[0].id.startswith("deep/k")
    assert abs(len(train[0].mel) - 0.5 * 22050 / 256) < 4
    assert int(train.num_frames[0]) >= len(train[0].mel)


def test_a_member_is_read_by_its_path(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", many())
    assert len(read_audio(tar / "k3.wav", 22050)) == 11025
    with pytest.raises(UserError, match=r"x.tar/none.wav: no such audio file"):
        read_audio(tar / "none.wav", 22050)
    utterance = load(tar.parent).valid.utterances[0]
    assert len(read_audio(utterance.audio, 22050)) == 11025


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"z.wav": tone()}, r"x.tar/z: the sample has no text; got .wav; expected z.txt or z.json"),
        ({"z.txt": b"Hi."}, r"x.tar/z: the sample has no audio; got .txt"),
        ({"z.wav": tone(), "z.txt": b" "}, r"x.tar/z.wav: empty transcript"),
        ({"z.wav": tone(), "z.txt": b"\xe9"}, r"x.tar/z.txt: the text is not UTF-8; got byte 0xe9"),
        ({"z.wav": tone(), "z.json": b"{"}, r"x.tar/z.json: not JSON"),
        ({"z.wav": tone(), "z.json": b"{}"}, r"x.tar/z.json: 'text' is missing"),
        ({"z.wav": b"", "z.txt": b"Hi."}, r"x.tar/z.wav: audio file is empty"),
        ({"z.wav": b"RIFF no", "z.txt": b"Hi."}, r"x.tar/z.wav: cannot read audio"),
        ({"z.wav": tone()[:900], "z.txt": b"Hi."}, r"x.tar/z.wav: the wav ends before"),
        ({"z.wav": tone(), "z.flac": tone(), "z.txt": b"a"}, r"x.tar/z: the sample has more than"),
        ({"z.wav": tone(0.02), "z.txt": b"A long text."}, "skipped"),
        ({"z.wav": tone(0.3), "z.txt": b"Long " * 90}, r"x.tar/z.wav: .*449 symbols, 25 frames"),
        ({"z.wav": tone(), "z.json": b'{"text": "Hi.", "id": "k2"}'}, r"the id 'k2' occurs twice"),
    ],
)  # fmt: skip
def test_defects_name_file_and_member(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    write_tar(tmp_path / "x.tar", many() | files)
    if message.startswith("skipped"):
        assert sum(load(tmp_path).report.skipped.values()) == 1
        return
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_a_cut_tar_is_named(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", many())
    whole = tar.read_bytes()
    with tarfile.open(tar) as archive:
        infos = archive.getmembers()
    last = infos[-1]
    ends = {
        "data": infos[-2].offset_data + 99,
        "boundary": last.offset,
        "mark": last.offset_data + 512,
    }
    for end in ends.values():
        tar.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"x.tar/k8\.\w+: the tar file is cut or"):
            load(tmp_path)
    for content in (b"", b"x" * 4000):
        tar.write_bytes(content)
        with pytest.raises(UserError, match=r"x.tar: the tar file is cut or no tar"):
            load(tmp_path)


@pytest.mark.parametrize("pattern", ["none-*.tar", "**x/*.tar", "[", "\0"])
def test_no_tar_names_the_command(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UserError, match=r"no tar files here; .*profforce data pack"):
        load(f"{tmp_path}/{pattern}")


def test_a_home_that_nobody_has_is_one_line() -> None:
    with pytest.raises(UserError, match=r"data.shards=~nobody-at-all/x: no tar files here"):
        load("~nobody-at-all/x")


def test_names_without_a_key_are_passed_over(tmp_path: Path) -> None:
    """What macOS, people and WebDataset's own tools leave in tar files."""
    litter = ["._k0.wav", ".DS_Store", "README", "a/._k1.txt", "__index__.json"]
    write_tar(tmp_path / "x.tar", dict.fromkeys(litter, b"?") | many())
    assert len(load(tmp_path).train) + len(load(tmp_path).valid) == 9


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (
            tarfile.SYMTYPE,
            "x.tar/z.wav: a link in place of a file; got a link to k0.wav",
        ),
        (tarfile.LNKTYPE, "x.tar/z.wav: a link in place of a file"),
    ],
    ids=["symbolic", "hard"],
)
def test_links_are_named(tmp_path: Path, kind: bytes, line: str) -> None:
    tar = write_tar(tmp_path / "x.tar", many() | {"z.txt": b"Hi."})
    with tarfile.open(tar, "a") as archive:
        info = tarfile.TarInfo("z.wav")
        info.type, info.linkname = kind, "k0.wav"
        archive.addfile(info)
    with pytest.raises(UserError, match=line):
        load(tmp_path)


@pytest.mark.parametrize("name", ["k8.txt", "k8.TXT"])
def test_a_file_that_is_there_twice_is_named(tmp_path: Path, name: str) -> None:
    tar = write_tar(tmp_path / "x.tar", many())
    with tarfile.open(tar, "a") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(UserError, match=f"x.tar/{name}: the tar file holds it twice"):
        load(tmp_path)


def test_a_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    tar = tmp_path / "x.tar"
    with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("gr\udcfcn.txt"))
    with pytest.raises(UserError, match=r"x.tar: the name is not UTF-8; got 'gr.udcfcn.txt'"):
        load(tmp_path)


def test_a_broken_sound_is_named_by_its_member_alone(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", many(1) | {"z.flac": b"fLaC", "z.txt": b"Hi."})
    with pytest.raises(UserError, match=r"x.tar/z.flac: cannot read audio") as caught:
        load(tmp_path)
    assert " object at " not in str(caught.value)


@pytest.mark.parametrize("opened", [False, True], ids=["before", "after"])
def test_a_tar_that_another_one_takes_the_place_of_is_named(tmp_path: Path, opened: bool) -> None:
    """Its places would give other speech, or none."""
    tar = write_tar(tmp_path / "x.tar", many())
    corpus = load(tmp_path)
    if opened:
        assert len(corpus.train[0].mel)
        tar.write_bytes(tar.read_bytes())
        os.utime(tar, ns=(0, 0))
    else:
        write_tar(tmp_path / "x.tar", many() | {"z.txt": b"Hi."})
    with pytest.raises(UserError, match=r"x.tar: the tar file has changed since it was searched"):
        _ = corpus.train[0]


def test_a_tar_that_is_cut_while_it_is_in_use_is_named_also_by_workers(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", many())
    train = load(tmp_path).train
    tar.write_bytes(tar.read_bytes()[:2000])
    for num_workers in (0, 1):
        with pytest.raises(UserError, match=r"x.tar: the tar file has changed"):
            for batch in loader(train, [[k] for k in range(len(train))], num_workers):
                accepted(batch)


def test_silence_is_named_when_it_is_read(tmp_path: Path) -> None:
    files = many()
    silent = io.BytesIO()
    soundfile.write(silent, np.zeros(9000), 22050, format="WAV")
    write_tar(tmp_path / "x.tar", files | {f"k{k}.wav": silent.getvalue() for k in range(9)})
    train = load(tmp_path).train
    with pytest.raises(UserError, match=r"x.tar/k\d.wav: the audio is silent throughout"):
        train[0]


def test_a_dataset_goes_to_workers(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", many())
    train = load(tmp_path).train
    train[0]
    copy = pickle.loads(pickle.dumps(train))
    assert torch.equal(copy[1].mel, train[1].mel)


def test_columns_of_many_tars_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(3):
        files = {f"t{k}/{name}": content for name, content in many().items()}
        write_tar(tmp_path / f"x{k}.tar", files)
    small = load(tmp_path)
    monkeypatch.setattr(table, "LARGE", 5)
    made = load(tmp_path)
    monkeypatch.setattr("profforce.data.corpus.Assembly", None)
    again = load(tmp_path)
    assert small.fingerprint() == made.fingerprint() == again.fingerprint()
    for k in range(len(small.train)):
        assert torch.equal(small.train[k].mel, again.train[k].mel)
    assert len(pickle.dumps(again.train)) < 4000


def test_columns_that_cannot_be_kept_name_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "x.tar", many())
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(table, "LARGE", 5)
    with pytest.raises(UserError, match=r"cannot keep the columns of the corpus .*set data\.cache"):
        load(tmp_path, cache=str(tmp_path / "file" / "cache"))


def test_neighbours_are_read_together(tmp_path: Path) -> None:
    """Windows of whole tar files; what is left joins the last one."""
    assert chunks_of(np.repeat([0, 1, 2, 3, 4], 3), 5) == [6]
    assert chunks_of(np.repeat([0, 1, 2, 3, 4], 3), 3) == [3, 6, 9, 12]
    assert chunks_of(np.repeat([0, 1], 3), 20_000) == [] == chunks_of(None, 1)
    for k in range(3):
        files = {f"t{k}/{name}": content for name, content in many().items()}
        write_tar(tmp_path / f"x{k}.tar", files)
    train = load(tmp_path).train
    sampler = BucketSampler(train.num_frames, 2, 0, chunks=train.chunks(1))
    tars = [{train.utterances[k].id[:2] for k in batch} for batch in sampler.batches(0)]
    assert all(len(names) == 1 for names in tars)
