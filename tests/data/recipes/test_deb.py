import io
import tarfile
from pathlib import Path

import pytest

from profforce.data.recipes.deb import package_files
from profforce.errors import UserError


def member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def data_tar(files: dict[str, bytes], compression: str = "xz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("./link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return buffer.getvalue()


def make_deb(path: Path, files: dict[str, bytes], compression: str = "xz") -> Path:
    tar = data_tar(files, compression)
    parts = [member("debian-binary", b"2.0\n"), member("control.tar.xz", b"odd")]
    parts.append(member(f"data.tar.{compression}".rstrip("."), tar))
    path.write_bytes(b"!<arch>\n" + b"".join(parts))
    return path


@pytest.mark.parametrize("compression", ["xz", "gz", "bz2", ""])
def test_regular_files_are_read(tmp_path: Path, compression: str) -> None:
    files = {"./usr/a.txt": b"hello", "./usr/b": b""}
    deb = make_deb(tmp_path / "x.deb", files, compression)
    assert dict(package_files(deb)) == {"usr/a.txt": b"hello", "usr/b": b""}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: b"PK" + raw, "not a Debian package"),
        (lambda raw: raw[: len(raw) - 40], "ends before its data.tar"),
        (lambda raw: raw[:100], "the package is damaged|ends before"),
        (lambda raw: raw[:8] + b"x" * 60 + raw[68:], "the package is damaged"),
        (lambda raw: raw.replace(b"data.tar.xz", b"date.tar.xz"), "ends before its data.tar"),
        (lambda raw: raw[:-60] + b"\0" * 60, "cannot read the package"),
    ],
)
def test_damage_is_one_line_naming_the_file(tmp_path: Path, damage: object, message: str) -> None:
    deb = make_deb(tmp_path / "x.deb", {"./a": bytes(range(256)) * 40})
    deb.write_bytes(damage(deb.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UserError, match=f"x.deb: .*({message})"):
        list(package_files(deb))


def test_an_unknown_compression_without_dpkg_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deb = make_deb(tmp_path / "x.deb", {})
    deb.write_bytes(deb.read_bytes().replace(b"data.tar.xz ", b"data.tar.zst"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"compressed as \.zst.*dpkg-deb -x"):
        list(package_files(deb))
