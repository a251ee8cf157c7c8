"""Real speech: the prompts of the Asterisk telephone system, read by professionals.

Debian packages them with transcripts: ``asterisk-core-sounds-<language>`` and ``...-g722``.
"""

import gzip
import logging
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from profforce.audio.files import write_audio
from profforce.config import DataConfig
from profforce.data.corpus import corpus_root
from profforce.data.progress import Progress, silent
from profforce.data.recipes.common import is_whole_wav, require, write_metadata, write_provenance
from profforce.data.recipes.deb import package_files
from profforce.errors import UserError

log = logging.getLogger(__name__)

DEFAULT_PACKAGE = "asterisk-core-sounds-en"
PACKAGE = re.compile(r"asterisk-core-sounds-(en|es|fr|it|ru)")
TRANSCRIPTS = re.compile(r"(?:^|/)core-sounds-([a-z]{2})\.txt\.gz$")
SOUND = re.compile(r"(?:^|/)[a-z]{2}_[A-Z]{2}_[^/]+/(.+)\.g722$")
SAMPLE_RATE = 16000
BIT_RATE = 64000
LICENCE = "CC-BY-SA-3.0 (en, es, fr, it) or CC-BY-3.0, see the package's copyright file"
ASIDES = re.compile(r"\[[^]]*\]|<[^>]*>|\([^)]*\)")
SPOKEN_KEYS = {"*": " star ", "#": " pound "}
"""How the English speaker reads the telephone's keys."""


class Material(NamedTuple):
    """What the packages hold."""

    language: str
    transcripts: dict[str, str]
    sounds: dict[str, bytes]
    """G.722, 16 kHz."""


def make(data: DataConfig, progress: Progress | None = None) -> None:
    """Decode the prompts into ``data.root``; what is already there is kept.

    ``data.source``: a folder with the two ``.deb`` files or their unpacked tree, one of the
    ``.deb`` files, or a package's name such as ``asterisk-core-sounds-fr``; unset, the English
    ones are fetched with apt. Raises :class:`UserError` when they cannot be had.
    """
    root = corpus_root(data)
    codec, version = require(
        "G722", distribution="G722", extra="asterisk", why="decoding the asterisk prompts"
    )
    material = _material(data, root)
    texts = {name: clean(text, material.language) for name, text in material.transcripts.items()}
    names = sorted(name for name, text in texts.items() if text and name in material.sounds)
    if not names:
        raise UserError("no prompt has both a transcript and a sound", where=data.source or root)
    names = names[: data.num_utterances]
    report = progress or silent
    rows: list[tuple[str, str, str]] = []
    for done, name in enumerate(names, 1):
        utterance = name.replace("/", "-")
        path = root / "wavs" / f"{utterance}.wav"
        if not is_whole_wav(path):
            write_audio(path, decode(material.sounds[name], codec), SAMPLE_RATE)
        rows.append((utterance, texts[name], texts[name]))
        report("decoding the prompts", done, len(names))
    log.info("%d of %d sounds are speech with a transcript", len(names), len(material.sounds))
    facts = {"language": material.language, "decoder": f"G722 {version}", "licence": LICENCE}
    write_provenance(root, "asterisk", facts)
    write_metadata(root, rows)


def clean(text: str, language: str) -> str:
    """What is really said: without notes in brackets; empty for tones and silence."""
    text = ASIDES.sub(" ", text)
    if language == "en":
        for key, spoken in SPOKEN_KEYS.items():
            text = text.replace(key, spoken)
    text = " ".join(text.split())
    return text if any(symbol.isalnum() for symbol in text) else ""


def decode(sound: bytes, codec: Any) -> torch.Tensor:
    """G.722 to audio [N] at 16 kHz."""
    samples = codec.G722(SAMPLE_RATE, BIT_RATE).decode(sound)
    return torch.tensor(samples, dtype=torch.float32) / 2**15


def parse_transcripts(text: str) -> dict[str, str]:
    """``{prompt: transcript}`` of lines ``prompt: transcript``; ``;`` starts a comment."""
    found: dict[str, str] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        name, colon, said = line.partition(":")
        if colon and not line.startswith(";"):
            found[name.strip()] = said.strip()
    return found


def _material(data: DataConfig, root: Path) -> Material:
    where, contents = _contents(data, root)
    language, transcripts, sounds = "", {}, {}
    for name, content in contents:
        if match := TRANSCRIPTS.search(name):
            if language:
                raise UserError(
                    "transcripts of more than one language",
                    where=where,
                    got=f"{language} and {match[1]}",
                    remedy="give a folder with the packages of one language",
                )
            language = match[1]
            transcripts = parse_transcripts(gzip.decompress(content).decode("utf-8"))
        elif match := SOUND.search(name):
            sounds[match[1]] = content
    if not (language and sounds):
        raise UserError(
            "the asterisk prompts are not complete",
            where=where,
            got="no transcripts" if not language else "no .g722 sounds",
            expected=f"what {DEFAULT_PACKAGE} and {DEFAULT_PACKAGE}-g722 hold",
        )
    return Material(language, transcripts, sounds)


def _contents(data: DataConfig, root: Path) -> tuple[Path, Iterator[tuple[str, bytes]]]:
    """Where the material is and its files; only the folder's own packages or tree are read."""
    if data.source is None or PACKAGE.fullmatch(data.source):
        packages = _fetched(data.source or DEFAULT_PACKAGE, root / "packages")
        return root / "packages", _of_packages(packages)
    source = Path(data.source).expanduser()
    if source.is_file():
        stem = source.name.partition("_")[0].removesuffix("-g722")
        return source.parent, _of_packages(_packages_in(source.parent, stem))
    if not source.is_dir():
        raise UserError(
            "no such source",
            where=source,
            expected=f"a folder, a .deb file or a name such as {DEFAULT_PACKAGE}",
        )
    packages = sorted(source.glob("asterisk-core-sounds-*.deb"))
    return source, _of_packages(packages) if packages else _of_tree(source)


def _of_packages(packages: list[Path]) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        yield from package_files(package)


def _of_tree(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and (TRANSCRIPTS.search(name) or SOUND.search(name)):
            yield name, path.read_bytes()


def _packages_in(folder: Path, package: str) -> list[Path]:
    found = (sorted(folder.glob(f"{name}_*.deb")) for name in (package, f"{package}-g722"))
    return [paths[-1] for paths in found if paths]


def _fetched(package: str, folder: Path) -> list[Path]:
    """The two packages in ``folder``, fetched with apt unless they are there."""
    present = _packages_in(folder, package)
    if len(present) == 2:
        return present
    names = [package, f"{package}-g722"]
    remedy = f"fetch the Debian packages {' and '.join(names)} and set data.source to their folder"
    apt = shutil.which("apt-get")
    if apt is None:
        raise UserError("this machine has no apt-get to fetch the prompts", remedy=remedy)
    folder.mkdir(parents=True, exist_ok=True)
    log.info("fetching %s", " and ".join(names))
    command = [apt, "download", "-q", *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    present = _packages_in(folder, package)
    if done.returncode or len(present) < 2:
        got = next((x for x in done.stderr.splitlines() if x.startswith("E:")), "no packages")
        raise UserError("apt-get download failed", got=got, remedy=remedy)
    return present
