"""Tar files of samples as WebDataset lays them out: ``KEY.wav`` beside ``KEY.txt`` or ``KEY.json``.

Files of one key lie side by side; the key ends at the first dot of the name. As there,
names without a key are passed over: hidden files, those with no suffix, ``__meta__.json``. A tar is
searched once for where its members lie, which reads headers and texts and seeks over the audio; a
sample is then read from its place. That gives what a stream of tars (the ``webdataset`` package)
does not: lengths before reading, batches of like lengths, and a resume to the sample without
replaying an epoch.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import soundfile

from profforce.audio.tars import Region
from profforce.data.check import audio_kinds
from profforce.data.check.header import wav_defect
from profforce.data.check.kinds import DefectError
from profforce.data.manifest import AUDIO_SUFFIXES, Row, json_object, json_string, require_text
from profforce.errors import UserError

TEXT_SUFFIXES = (".txt", ".json")
COPY = "copy it again or pack it anew"


@dataclass(frozen=True)
class Member:
    """A file in a tar."""

    name: str
    offset: int
    """Of its content, in bytes."""
    size: int


@dataclass
class Sample:
    """The members of one key."""

    key: str
    members: dict[str, Member] = field(default_factory=dict)
    """By suffix, dot included."""


@dataclass(frozen=True)
class Found:
    """One utterance of a tar."""

    row: Row
    audio: Member
    num_samples: int
    """By the audio's header, at the mel's rate."""


def tar_files(pattern: str) -> list[Path]:
    """The tar files of a folder or of a pattern such as ``data/train-*.tar``, by name."""
    why = None
    try:
        path = Path(pattern).expanduser()
        root = Path(path.anchor)
        if path.is_dir():
            found = sorted(path.glob("*.tar"))
        else:
            found = sorted(root.glob(str(path.relative_to(root)))) if path.name else []
        found = [tar for tar in found if tar.is_file()]
    except (ValueError, RuntimeError, OSError) as error:  # no pattern, no such person's home
        found, why = [], str(error)
    if not found:
        raise UserError(
            "no tar files here",
            where=f"data.shards={pattern}",
            got=why,
            expected="a folder with .tar files, or a pattern such as data/train-*.tar",
            remedy="make them with: profforce data pack",
        )
    return found


def found_in(tar: Path, sample_rate: int) -> Iterator[Found]:
    """The utterances of one tar; raises :class:`UserError` naming file and member."""
    with tar.open("rb") as file:
        for sample in samples(tar):
            audio = _audio(tar, sample)
            where = f"{tar}/{audio.name}"
            row = _row(tar, sample, audio, file)
            require_text(row)
            region = Region(file, audio.offset, audio.size)
            yield Found(row, audio, _num_samples(region, where, sample_rate))


def samples(tar: Path) -> Iterator[Sample]:
    """Members by key, as long as they lie side by side."""
    sample: Sample | None = None
    for member in members(tar):
        path = PurePosixPath(member.name)
        stem, dot, suffix = path.name.partition(".")
        if not stem or not dot or (stem.startswith("__") and stem.endswith("__")):
            continue
        key = (path.parent / stem).as_posix()
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = Sample(key)
        suffix = dot + suffix.lower()
        if suffix in sample.members:
            raise UserError(
                "the tar file holds it twice",
                where=f"{tar}/{member.name}",
                expected="one file of a name",
                remedy="pack it anew",
            )
        sample.members[suffix] = member
    if sample is not None:
        yield sample


def members(tar: Path) -> Iterator[Member]:
    """The files in a tar, which has to be whole and to hold their content."""
    last = ""
    try:
        with tarfile.open(tar, "r:") as archive:
            for info in archive:
                last = f"/{info.name}"
                _refuse_odd(tar, info)
                if info.isreg():
                    yield Member(info.name, info.offset_data, info.size)
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(512) != bytes(512):
                raise tarfile.ReadError("no end mark")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(
            "the tar file is cut or no tar",
            where=f"{tar}{last}",
            got=str(error),
            expected="an uncompressed tar file",
            remedy=COPY,
        ) from error


def _refuse_odd(tar: Path, info: tarfile.TarInfo) -> None:
    """Members whose content does not lie in one piece behind their header, or without a name."""
    where = f"{tar}/{info.name}"
    if info.issym() or info.islnk():
        raise UserError(
            "a link in place of a file",
            where=where,
            got=f"a link to {info.linkname}",
            remedy="pack the files themselves: tar --dereference --hard-dereference",
        )
    if info.issparse():
        raise UserError("a sparse file", where=where, remedy="pack it anew without tar --sparse")
    if any("\ud800" <= letter <= "\udfff" for letter in info.name):
        raise UserError(
            "the name is not UTF-8", where=tar, got=ascii(info.name), remedy="give it another name"
        )


def _audio(tar: Path, sample: Sample) -> Member:
    found = [member for suffix, member in sample.members.items() if suffix in AUDIO_SUFFIXES]
    if len(found) != 1:
        raise UserError(
            "the sample has no audio" if not found else "the sample has more than one audio file",
            where=f"{tar}/{sample.key}",
            got=", ".join(sample.members),
            expected=f"one of {', '.join(AUDIO_SUFFIXES)}",
            remedy="files of one key lie side by side in a tar",
        )
    return found[0]


def _row(tar: Path, sample: Sample, audio: Member, file: BinaryIO) -> Row:
    found = {suffix: sample.members[suffix] for suffix in TEXT_SUFFIXES if suffix in sample.members}
    if not found:
        raise UserError(
            "the sample has no text",
            where=f"{tar}/{sample.key}",
            got=", ".join(sample.members),
            expected=" or ".join(f"{sample.key}{suffix}" for suffix in TEXT_SUFFIXES),
            remedy="files of one key lie side by side in a tar",
        )
    where = f"{tar}/{audio.name}"
    plain = _text(tar, found[".txt"], file) if ".txt" in found else None
    if ".json" not in found:
        text = plain or ""
        return Row(where, audio.name, sample.key, text, text, None)
    place = f"{tar}/{found['.json'].name}"
    described = json_object(place, _text(tar, found[".json"], file))
    text = json_string(place, described, "text", plain)
    spoken, name, speaker = (
        json_string(place, described, key, "") for key in ("normalized_text", "id", "speaker")
    )
    spoken = spoken or text
    return Row(where, audio.name, name or sample.key, text or spoken, spoken, speaker or None)


def _text(tar: Path, member: Member, file: BinaryIO) -> str:
    file.seek(member.offset)
    try:
        return file.read(member.size).decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UserError(
            "the text is not UTF-8",
            where=f"{tar}/{member.name}",
            got=f"byte 0x{error.object[error.start]:02x}",
            remedy="write it as UTF-8",
        ) from error


def _num_samples(audio: Region, where: str, sample_rate: int) -> int:
    """Length at ``sample_rate`` by the header; the audio has to be as long as that says."""
    if not (size := audio.seek(0, 2)):
        raise DefectError(audio_kinds.AUDIO_EMPTY, where=where)
    audio.seek(0)
    found = wav_defect(audio, size, sample_rate)
    if found is not None:
        raise DefectError(found[0], where=where, got=found[1])
    audio.seek(0)
    try:
        info = soundfile.info(audio)
    except (soundfile.SoundFileError, RuntimeError) as error:
        why = getattr(error, "error_string", str(error))  # the rest names the object read from
        raise DefectError(audio_kinds.AUDIO_CORRUPT, where=where, got=why) from error
    return -(-int(info.frames) * sample_rate // int(info.samplerate))
