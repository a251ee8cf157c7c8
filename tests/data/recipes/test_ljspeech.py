import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from profforce.config import DataConfig, DataKind
from profforce.data.manifest import corpus_folder, read_manifest
from profforce.data.recipes import ljspeech
from profforce.errors import UserError
from tests.data.conftest import write_tone


def fake_corpus(folder: Path) -> Path:
    write_tone(folder / "wavs" / "LJ001-0001.wav", 0.3)
    (folder / "metadata.csv").write_text('LJ001-0001|Printing, in "1455"|Printing, in fourteen\n')
    return folder


def fake_archive(path: Path, tmp_path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = fake_corpus(tmp_path / "made" / ljspeech.NAME)
    with tarfile.open(path, "w:bz2") as tar:
        tar.add(folder, ljspeech.NAME)
    return path


def made(root: Path, source: Path | None = None) -> Path:
    """The folder that the corpus was found in."""
    text = None if source is None else str(source)
    ljspeech.make(DataConfig(kind=DataKind.ljspeech, root=str(root), source=text))
    folder = corpus_folder(root)
    assert [u.spoken for u in read_manifest(folder)] == ["Printing, in fourteen"]
    return folder


def test_a_corpus_at_the_root_is_left_alone(tmp_path: Path) -> None:
    fake_corpus(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert made(tmp_path) == tmp_path and sorted(tmp_path.rglob("*")) == before


def test_a_corpus_below_the_root_is_used_there(tmp_path: Path) -> None:
    fake_corpus(tmp_path / ljspeech.NAME)
    assert made(tmp_path) == tmp_path / ljspeech.NAME


@pytest.mark.parametrize("source", ["else", f"else/{ljspeech.NAME}"])
def test_a_corpus_elsewhere_is_not_copied(tmp_path: Path, source: str) -> None:
    there = fake_corpus(tmp_path / "else" / ljspeech.NAME)
    assert made(tmp_path / "root", tmp_path / source) == there.resolve()
    assert not list((tmp_path / "root").rglob("*.wav"))


@pytest.mark.parametrize("at_root", [True, False])
def test_an_archive_is_unpacked_once(tmp_path: Path, at_root: bool) -> None:
    root = tmp_path / "root"
    archive = fake_archive((root if at_root else tmp_path) / ljspeech.ARCHIVE, tmp_path)
    source = None if at_root else archive
    assert made(root, source) == root / ljspeech.NAME
    archive.write_bytes(b"no longer needed")
    assert made(root, source) == root / ljspeech.NAME
    assert not list(root.glob(".unpack*"))


def test_a_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    archive = fake_archive(tmp_path / ljspeech.ARCHIVE, tmp_path)
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(UserError, match=r"bz2: cannot unpack"):
        made(tmp_path / "root", archive)
    assert not list((tmp_path / "root").glob("*/*"))


def test_a_wrong_source_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no LJSpeech-1\.1 here; expected a folder with"):
        made(tmp_path / "root", tmp_path / "nowhere")


def use_downloader(monkeypatch: pytest.MonkeyPatch, download: object) -> None:
    module = SimpleNamespace(LJSPEECH=download)
    monkeypatch.setattr(ljspeech.importlib, "import_module", lambda name: module)


def test_a_failed_download_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(root: Path, download: bool) -> None:
        raise OSError("no route to host")

    use_downloader(monkeypatch, fail)
    with pytest.raises(UserError, match=r"failed \(no route to host\); fetch .*data\.source"):
        made(tmp_path)


def test_a_download_that_was_killed_half_way_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "download" / ljspeech.NAME
    half.mkdir(parents=True)
    (half / "metadata.csv").write_text("half|")

    def download(root: Path, download: bool) -> None:
        assert download and not (root / ljspeech.NAME).exists()
        fake_corpus(root / ljspeech.NAME)

    use_downloader(monkeypatch, download)
    assert made(tmp_path) == tmp_path / ljspeech.NAME
