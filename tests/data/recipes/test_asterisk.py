import gzip
import importlib.util
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile

from profforce.config import DataConfig, DataKind
from profforce.data.manifest import read_manifest
from profforce.data.recipes import asterisk
from profforce.errors import UserError
from tests.data.recipes.test_deb import make_deb

TRANSCRIPTS = """; Core Asterisk Sounds in English

activated: Activated.
beep: [this is a simple beep tone]
digits/1: one
menu: Press * or #.  (simple tone sound plays)
pls-missing: no sound of this
silence/1: (1 second of silence)
"""
SOUNDS = ("activated", "beep", "digits/1", "menu", "silence/1")
DOC = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
VOICE = "usr/share/asterisk/sounds/en_US_f_Allison"


class Codec:
    """Stands for G722: two samples a byte."""

    def __init__(self, sample_rate: int, bit_rate: int) -> None:
        assert (sample_rate, bit_rate) == (16000, 64000)

    def decode(self, data: bytes) -> array:
        return array("h", [1000] * (2 * len(data)))


@pytest.fixture(autouse=True)
def codec(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(G722=Codec)
    monkeypatch.setattr(asterisk, "require", lambda *a, **k: (module, "0"))


def files(prefix: str = "") -> dict[str, bytes]:
    sounds = {f"{prefix}{VOICE}/{name}.g722": b"\0" * 400 for name in SOUNDS}
    return {f"{prefix}{DOC}": gzip.compress(TRANSCRIPTS.encode()), **sounds}


def packages(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (doc, *_), all_files = files("./"), files("./")
    sounds = {name: content for name, content in all_files.items() if name != doc}
    return [
        make_deb(folder / "asterisk-core-sounds-en_1_all.deb", {doc: all_files[doc]}),
        make_deb(folder / "asterisk-core-sounds-en-g722_1_all.deb", sounds),
    ]


def made(tmp_path: Path, source: Path | str | None) -> dict[str, str]:
    root = tmp_path / "corpus"
    source = None if source is None else str(source)
    asterisk.make(DataConfig(kind=DataKind.asterisk, root=str(root), source=source))
    return {u.id: u.spoken for u in read_manifest(root)}


EXPECTED = {
    "activated": "Activated.",
    "digits-1": "one",
    "menu": "Press star or pound .",
}


def test_spoken_prompts_of_packages_in_a_folder(tmp_path: Path) -> None:
    packages(tmp_path / "debs")
    assert made(tmp_path, tmp_path / "debs") == EXPECTED
    info = soundfile.info(tmp_path / "corpus" / "wavs" / "menu.wav")
    assert (info.samplerate, info.frames) == (16000, 800)
    assert '"CC-BY' in (tmp_path / "corpus" / "corpus.json").read_text()


@pytest.mark.parametrize("which", [0, 1])
def test_either_package_finds_the_other(tmp_path: Path, which: int) -> None:
    assert made(tmp_path, packages(tmp_path / "debs")[which]) == EXPECTED


def test_an_unpacked_tree(tmp_path: Path) -> None:
    for name, content in files().items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert made(tmp_path, tmp_path / "tree") == EXPECTED


def test_packages_already_fetched_are_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages(tmp_path / "corpus" / "packages")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert made(tmp_path, None) == EXPECTED
    whole = tmp_path / "corpus" / "wavs" / "menu.wav"
    time = whole.stat().st_mtime_ns
    (tmp_path / "corpus" / "wavs" / "digits-1.wav").unlink()
    assert made(tmp_path, "asterisk-core-sounds-en") == EXPECTED
    assert whole.stat().st_mtime_ns == time


def test_without_apt_the_error_says_what_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"no apt-get.*asterisk-core-sounds-fr-g722.*data\.source"):
        made(tmp_path, "asterisk-core-sounds-fr")


def test_what_is_incomplete_or_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such source"):
        made(tmp_path, tmp_path / "nowhere")
    packages(tmp_path / "debs")[1].unlink()
    with pytest.raises(UserError, match=r"not complete; got no \.g722 sounds"):
        made(tmp_path, tmp_path / "debs")


@pytest.mark.skipif(
    importlib.util.find_spec("G722") is None, reason="the extra asterisk is not installed"
)
def test_the_real_codec_decodes_what_it_encoded() -> None:
    import G722
    import torch

    tone = 0.3 * torch.sin(torch.arange(16000) * 0.2)
    encoded = G722.G722(16000, 64000).encode(array("h", (tone * 2**15).int().tolist()))
    decoded = asterisk.decode(bytes(encoded), G722)
    assert abs(len(decoded) - 16000) < 64
    assert decoded[1000:].std() == pytest.approx(float(tone.std()), rel=0.1)
