"""Debian packages read without dpkg: an ``ar`` archive with a compressed tar inside (deb(5)).

Nothing is unpacked to disk, so no member's name can lead anywhere.
"""

import io
import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from profforce.errors import UserError

AR_MAGIC = b"!<arch>\n"
AR_HEADER_BYTES = 60
AR_HEADER_END = b"`\n"
DATA_TAR = "data.tar"
TARFILE_READS = ("", ".xz", ".gz", ".bz2")
MAX_MEMBER_BYTES = 256 * 2**20
"""No sound of a prompt is near that; a larger member is refused rather than read."""


def package_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of every regular file of the package at ``path``.

    Raises :class:`UserError` when it is no package or is damaged.
    """
    try:
        with path.open("rb") as file:
            name, content = _data_tar(path, file)
        suffix = name.removeprefix(DATA_TAR)
        if suffix not in TARFILE_READS:
            content = _decompressed_by_dpkg(path, suffix)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is not None and member.size <= MAX_MEMBER_BYTES:
                    yield member.name.removeprefix("./"), stream.read()
    except (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError) as error:
        raise UserError(
            f"cannot read the package ({error})",
            where=path,
            expected="a whole .deb file",
            remedy="fetch it again",
        ) from error


def _data_tar(path: Path, file: BinaryIO) -> tuple[str, bytes]:
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise UserError("not a Debian package", where=path, expected="a .deb file")
    while header := file.read(AR_HEADER_BYTES):
        size = _member_size(path, header)
        name = header[:16].decode("ascii", "replace").strip().removesuffix("/")
        content = file.read(size)
        if len(content) < size:
            break
        if name.startswith(DATA_TAR):
            return name, content
        file.read(size % 2)  # members start at even offsets
    raise UserError(f"the package ends before its {DATA_TAR}", where=path, remedy="fetch it again")


def _member_size(path: Path, header: bytes) -> int:
    digits = header[48:58].strip()
    if len(header) < AR_HEADER_BYTES or header[58:] != AR_HEADER_END or not digits.isdigit():
        raise UserError("the package is damaged", where=path, remedy="fetch it again")
    return int(digits)


def _decompressed_by_dpkg(path: Path, suffix: str) -> bytes:
    """The plain tar of a package whose compression (such as zstd) tarfile does not read."""
    dpkg = shutil.which("dpkg-deb")
    if dpkg is None:
        raise UserError(
            f"this package is compressed as {suffix}",
            where=path,
            expected=" or ".join(TARFILE_READS[1:]),
            remedy="unpack it with dpkg-deb -x and give the folder as data.source",
        )
    done = subprocess.run([dpkg, "--fsys-tarfile", str(path)], capture_output=True, check=False)
    if done.returncode:
        raise UserError("dpkg-deb cannot read the package", where=path, got=done.stderr.decode())
    return done.stdout
