"""A clean small corpus, and one way to spoil it for each kind of defect."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from profforce.data.check.catalogue import KINDS
from profforce.data.check.kinds import Severity
from profforce.data.check.sides import is_valid_text

RATE = 22050
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
Samples = npt.NDArray[np.floating]
VALID_FRACTION = 0.4


def side_of(line: str) -> bool:
    return is_valid_text(line.split("|")[1], VALID_FRACTION)


def tone(seconds: float = 1.2, hz: float = 220.0, level: float = 0.3, rate: int = RATE) -> Samples:
    time = np.arange(round(seconds * rate)) / rate
    return level * np.sin(2 * np.pi * hz * time)


@dataclass
class Made:
    """A corpus of nine sentences in ``root``; spoil ``lines`` or files, then ``write``."""

    root: Path
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for k, number in enumerate(NUMBERS):
            self.wav(k, tone(hz=200.0 + 10 * k))
            self.lines.append(f"u{k}|sentence {number}.")

    def path(self, k: int) -> Path:
        return self.root / "wavs" / f"u{k}.wav"

    def wav(self, k: int, samples: Samples, rate: int = RATE, subtype: str = "PCM_16") -> None:
        self.path(k).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(self.path(k), samples, rate, subtype=subtype)

    def bytes_of(self, k: int, change: Callable[[bytes], bytes]) -> None:
        self.path(k).write_bytes(change(self.path(k).read_bytes()))

    def write(self, *, encoding: str = "utf-8", end: str = "\n", start: bytes = b"") -> None:
        text = "".join(line + end for line in self.lines)
        self.raw(start + text.encode(encoding, "surrogateescape"))

    def raw(self, content: bytes) -> None:
        (self.root / "metadata.csv").write_bytes(content)

    def jsonl(self, change: Callable[[list[dict[str, object]]], None]) -> None:
        rows: list[dict[str, object]] = []
        for line in self.lines:
            name, text = line.split("|")
            rows.append({"audio": f"wavs/{name}.wav", "text": text})
        change(rows)
        self.json_lines([json.dumps(row) for row in rows])

    def json_lines(self, lines: list[str]) -> None:
        text = "".join(line + "\n" for line in lines)
        (self.root / "manifest.jsonl").write_text(text, encoding="utf-8")


Spoil = Callable[[Made], None]
"""Spoils and writes a corpus."""


@dataclass(frozen=True)
class Case:
    """One defect, where it is found, and what else is found beside it."""

    code: str
    where: str
    """End of the place."""
    spoil: Spoil
    beside: frozenset[str] = frozenset()
    name: str = ""


CASES: list[Case] = []


def case(code: str, where: str, *beside: str, name: str = "") -> Callable[[Spoil], Spoil]:
    def remember(spoil: Spoil) -> Spoil:
        CASES.append(Case(code, where, spoil, frozenset(beside), name or code))
        return spoil

    return remember


def line_case(
    code: str, line: str, *beside: str, name: str = "", where: str = "metadata.csv:3"
) -> None:
    """The third line becomes ``line``."""

    def spoil(made: Made) -> None:
        made.lines[2] = line
        made.write()

    CASES.append(Case(code, where, spoil, frozenset(beside), name or code))


def wav_case(
    code: str,
    samples: Callable[[], Samples],
    *beside: str,
    rate: int = RATE,
    subtype: str = "PCM_16",
    name: str = "",
) -> None:
    """The audio of the third line becomes ``samples``."""

    def spoil(made: Made) -> None:
        made.wav(2, samples(), rate, subtype)
        made.write()

    where = "metadata.csv:3: wavs/u2.wav"
    CASES.append(Case(code, where, spoil, frozenset(beside), name or code))


def json_case(
    code: str,
    change: Callable[[list[dict[str, object]]], None],
    *beside: str,
    line: int = 3,
    name: str = "",
) -> None:
    """The same corpus as JSON lines, changed."""
    CASES.append(
        Case(
            code,
            f"manifest.jsonl:{line}",
            lambda made: made.jsonl(change),
            frozenset(beside),
            name or code,
        )
    )


def json_line_case(code: str, line: str, name: str = "") -> None:
    """The third line of ``manifest.jsonl`` becomes ``line``."""

    def spoil(made: Made) -> None:
        made.jsonl(lambda rows: None)
        path = made.root / "manifest.jsonl"
        lines = path.read_text().splitlines()
        made.json_lines([*lines[:2], line, *lines[3:]])

    beside = frozenset() if severity_is_low(code) else frozenset(["audio.unlisted"])
    CASES.append(Case(code, "manifest.jsonl:3", spoil, beside, name or code))


def severity_is_low(code: str) -> bool:
    return KINDS[code].severity is not Severity.error


# The manifest as a whole.


@case("manifest.missing", "corpus")
def _(made: Made) -> None:
    pass


@case("manifest.both", "corpus")
def _(made: Made) -> None:
    made.write()
    made.jsonl(lambda rows: None)


@case("manifest.description", "corpus.json")
def _(made: Made) -> None:
    made.write()
    (made.root / "corpus.json").write_text("[")


@case("manifest.empty", "metadata.csv")
def _(made: Made) -> None:
    made.raw(b"")


@case("manifest.empty", "metadata.csv", name="manifest.empty-header")
def _(made: Made) -> None:
    made.raw(b"id|text\n")


@case("manifest.utf16", "metadata.csv:1")
def _(made: Made) -> None:
    made.write(encoding="utf-16")


@case("manifest.mixed_encodings", "metadata.csv", "line.not_utf8", "audio.unlisted")
def _(made: Made) -> None:
    made.lines[1] = "u1|sentence caf\u00e9."
    made.lines[2] = "u2|sentence caf\udce9."
    made.write()


@case("manifest.bom", "metadata.csv:1")
def _(made: Made) -> None:
    made.write(start=b"\xef\xbb\xbf")


@case("manifest.unfinished", "metadata.csv")
def _(made: Made) -> None:
    made.raw("\n".join(made.lines).encode())


# Lines.


@case("line.crlf", "metadata.csv:1")
def _(made: Made) -> None:
    made.write(end="\r\n")


@case("line.blank", "metadata.csv:3")
def _(made: Made) -> None:
    made.lines.insert(2, "  ")
    made.write()


@case("line.bare_cr", "metadata.csv:1", "manifest.unfinished")
def _(made: Made) -> None:
    made.write(end="\r")


@case("line.not_utf8", "metadata.csv:3", "audio.unlisted")
def _(made: Made) -> None:
    made.lines[2] = "u2|sentence caf\udce9."
    made.write()


@case("line.duplicate", "metadata.csv:4", "audio.unlisted")
def _(made: Made) -> None:
    made.lines[3] = made.lines[1]
    made.write()


@case("line.header_inside", "metadata.csv:4")
def _(made: Made) -> None:
    made.lines.insert(3, "id|text")
    made.write()


line_case("line.too_long", "u2|" + "sentence. " * 120_000, "audio.unlisted")
line_case("line.columns", "u2|sentence three.|x|y", "audio.unlisted")
line_case("line.columns", "sentence", "audio.unlisted", name="line.columns-one")
line_case("line.separator", "u2,sentence three.", "audio.unlisted", name="line.separator-comma")
line_case("line.separator", "u2\tsentence three.", "audio.unlisted", name="line.separator-tab")

json_line_case("json.syntax", '{"audio": "wavs/u2.wav", "text": "sentence')
json_line_case("json.not_object", '["wavs/u2.wav"]')
json_line_case("json.missing_key", '{"audio": "wavs/u2.wav"}')
json_line_case("json.type", '{"audio": "wavs/u2.wav", "text": 3}')
json_line_case("json.type", '{"audio": "wavs/u2.wav", "text": "a b", "id": 7}', "json.type-id")
json_line_case("json.surrogate", '{"audio": "wavs/u2.wav", "text": "a \\ud800 b"}')
json_line_case(
    "json.repeated_key", '{"audio": "wavs/u2.wav", "text": "x", "text": "sentence three."}'
)
json_case("json.misspelt_key", lambda rows: rows[2].update(normalised_text="sentence"))

# Ids and speakers.


@case("id.duplicate", "metadata.csv:4", "audio.unlisted")
def _(made: Made) -> None:
    made.lines[3] = "u1|sentence ten."
    made.write()


@case("id.case_clash", "metadata.csv:4")
def _(made: Made) -> None:
    made.path(3).rename(made.root / "wavs" / "U1.wav")
    made.lines[3] = "U1|sentence four."
    made.write()


def _renamed(name: str) -> Spoil:
    def spoil(made: Made) -> None:
        made.path(2).rename(made.root / "wavs" / f"{name}.wav")
        made.lines[2] = f"{name}|sentence three."
        made.write()

    return spoil


for _label, _name in {
    "reserved": "what?",
    "device": "nul",
    "dot": "end.",
    "option": "-u2",
    "length": "u" * 210,
}.items():
    case("id.unsafe", "metadata.csv:3", name=f"id.unsafe-{_label}")(_renamed(_name))
case("id.invisible", "metadata.csv:3")(_renamed("u\u200b2"))
json_case("speaker.type", lambda rows: rows[2].update(speaker=4), "audio.unlisted")


def _speakers(rows: list[dict[str, object]], *names: str | None) -> None:
    for k, row in enumerate(rows):
        if (name := names[k % len(names)]) is not None:
            row["speaker"] = name


def _one_missing(rows: list[dict[str, object]]) -> None:
    _speakers(rows, "ann")
    del rows[2]["speaker"]


def _one_alike(rows: list[dict[str, object]]) -> None:
    _speakers(rows, "Ann Lee")
    rows[3]["speaker"] = "ann  lee"


json_case("speaker.missing", _one_missing)
json_case("speaker.alike", _one_alike, line=4)


# Transcripts.

line_case("text.empty", "u2|")
line_case("text.empty", "u2| \t ", name="text.empty-blank")
line_case("text.unspeakable", "u2|... !")
line_case("text.unspeakable", "u2|\u200b", "text.zero_width", name="text.unspeakable-zero_width")
line_case("text.digits", "u2|$" + "9" * 5000)
line_case("text.digits", "u2|" + "9,999," * 1000, name="text.digits-grouped")
line_case("text.digits", "u2|" + "\u2469" * 2000, name="text.digits-circled")
line_case("text.alphabet", "u2|sentence \u2603 three.")
line_case("text.control", "u2|sentence \x07three.")
line_case("text.control", "u2|sentence \0three.", name="text.control-nul")
line_case("text.zero_width", "u2|sentence\u200b three.")
line_case("text.zero_width", "u2|sentence\ufeff three.", name="text.zero_width-bom")
line_case("text.zero_width", "u2|sen\u00adtence three.", name="text.zero_width-soft_hyphen")
line_case("text.whitespace", "u2|sentence  three.")
line_case("text.whitespace", "u2|sentence\u00a0three.", name="text.whitespace-no_break")
line_case("text.replacement", "u2|sentence caf\ufffd.", "text.alphabet")
line_case("text.mojibake", "u2|sentence caf\u00c3\u00a9.")
line_case("text.decomposed", "u2|sentence cafe\u0301.")
line_case("text.markup", "u2|sentence <b>three</b>.", "text.fast")
line_case("text.markup", "u2|sentence &amp; three.", name="text.markup-entity")
line_case("text.csv_quotes", 'u2|"sentence ""three"""')
line_case("text.impossible", "u2|" + "sentence three, " * 20, where="metadata.csv:3: wavs/u2.wav")
line_case("text.fast", "u2|" + "sentence three, " * 4, where="metadata.csv:3: wavs/u2.wav")


@case("text.duplicate", "metadata.csv:4")
def _(made: Made) -> None:
    made.lines[3] = "u3|sentence three."
    made.write()


@case("text.slow", "metadata.csv:3: wavs/u2.wav")
def _(made: Made) -> None:
    made.lines[2] = "u2|three."
    made.wav(2, tone(8.0))
    made.write()


# Where the audio is.

line_case("audio.unnamed", "|sentence three.", "audio.unlisted")
line_case("audio.escapes", "../u2|sentence three.", "audio.unlisted")
line_case("audio.escapes", "/u2|sentence three.", "audio.unlisted", name="audio.escapes-root")
line_case("audio.missing", "x2|sentence three.", "audio.unlisted")
line_case(
    "audio.missing",
    "x" * 300 + "|sentence three.",
    "audio.unlisted",
    "id.unsafe",
    name="audio.missing-long",
)
line_case(
    "audio.missing",
    "u\0|sentence three.",
    "audio.unlisted",
    "id.invisible",
    name="audio.missing-nul",
)
line_case("audio.case", "U2|sentence three.", "audio.unlisted")


@case("audio.format", "metadata.csv:3")
def _(made: Made) -> None:
    made.path(2).rename(made.root / "wavs" / "u2.m4a")
    made.write()


@case("audio.not_a_file", "metadata.csv:3")
def _(made: Made) -> None:
    made.path(2).unlink()
    made.path(2).mkdir()
    made.write()


@case("audio.not_a_file", "metadata.csv:3", name="audio.not_a_file-pipe")
def _(made: Made) -> None:
    made.path(2).unlink()
    os.mkfifo(made.path(2))
    made.write()


@case("audio.dangling_link", "metadata.csv:3")
def _(made: Made) -> None:
    made.path(2).unlink()
    made.path(2).symlink_to("gone.wav")
    made.write()


@case("audio.link_loop", "metadata.csv:3")
def _(made: Made) -> None:
    made.path(2).unlink()
    made.path(2).symlink_to("u2.wav")
    made.write()


@case("audio.linked_outside", "metadata.csv:3")
def _(made: Made) -> None:
    outside = made.root.parent / "outside.wav"
    made.path(2).rename(outside)
    made.path(2).symlink_to(outside)
    made.write()


@case("folder.link_loop", "wavs/again")
def _(made: Made) -> None:
    (made.root / "wavs" / "again").symlink_to(made.root)
    made.write()


def _share(rows: list[dict[str, object]]) -> None:
    rows[3].update(audio="wavs/u1.wav", id="other")


@case("audio.shared", "manifest.jsonl:4", "audio.unlisted", "split.audio_leaks")
def _(made: Made) -> None:
    made.jsonl(_share)


@case("audio.same_sound", "metadata.csv:4")
def _(made: Made) -> None:
    made.path(3).write_bytes(made.path(2).read_bytes())
    made.write()


@case("audio.unlisted", "wavs/more.wav")
def _(made: Made) -> None:
    made.write()
    soundfile.write(made.root / "wavs" / "more.wav", tone(), RATE)


@case("audio.ambiguous", "wavs/u2.flac")
def _(made: Made) -> None:
    made.write()
    soundfile.write(made.root / "wavs" / "u2.flac", tone(), RATE)


# What the audio holds.


def bytes_case(code: str, change: Callable[[bytes], bytes], *beside: str, name: str = "") -> None:
    def spoil(made: Made) -> None:
        made.bytes_of(2, change)
        made.write()

    where = "metadata.csv:3: wavs/u2.wav"
    CASES.append(Case(code, where, spoil, frozenset(beside), name or code))


def with_data_size(raw: bytes, size: int) -> bytes:
    return raw[:40] + struct.pack("<I", size) + raw[44:]


bytes_case("audio.empty_file", lambda raw: b"")
bytes_case("audio.no_samples", lambda raw: with_data_size(raw[:44], 0))
bytes_case("audio.truncated", lambda raw: raw[: len(raw) // 2])
bytes_case("audio.truncated", lambda raw: raw[:44], name="audio.truncated-44_bytes")
bytes_case("audio.corrupt", lambda raw: b"RIFX" + raw[4:])
bytes_case("audio.corrupt", lambda raw: b"no audio at all", name="audio.corrupt-text")
bytes_case("audio.odd_rate", lambda raw: raw[:24] + struct.pack("<I", 3999) + raw[28:])
bytes_case("audio.unbounded", lambda raw: with_data_size(raw, 0xFFFFFFFF))


def _holed() -> Samples:
    samples = tone()
    samples[100] = np.nan
    return samples


def _infinite() -> Samples:
    samples = tone()
    samples[100] = np.inf
    return samples


def _padded(before: float, after: float) -> Samples:
    def silence(seconds: float) -> Samples:
        return np.zeros(round(seconds * RATE))

    return np.concatenate([silence(before), tone(), silence(after)])


wav_case("audio.not_finite", _holed, subtype="FLOAT")
wav_case("audio.not_finite", _infinite, subtype="FLOAT", name="audio.not_finite-inf")
wav_case("audio.silent", lambda: np.zeros(RATE))


def _opposite(noise: float) -> Samples:
    whole = (tone() * 2**14).astype(np.int16) / 2**15
    return np.stack([whole, noise - whole], axis=1)


wav_case(
    "audio.silent",
    lambda: _opposite(0),
    name="audio.silent-opposite_channels",
)
wav_case(
    "audio.quiet",
    lambda: _opposite(2**-8),
    "audio.stereo",
    name="audio.quiet-opposite_channels",
)
wav_case("audio.quiet", lambda: tone(level=0.01))
wav_case("audio.clipped", lambda: np.clip(tone(level=3.0), -1, 1))
wav_case(
    "audio.beyond_full_scale",
    lambda: tone(level=1.5),
    "audio.float",
    "audio.clipped",
    subtype="FLOAT",
)
wav_case("audio.dc_offset", lambda: tone() + 0.1)
wav_case("audio.leading_silence", lambda: _padded(1.5, 0))
wav_case("audio.trailing_silence", lambda: _padded(0, 1.5))
wav_case(
    "audio.long_pause",
    lambda: np.concatenate([_padded(0, 2.5), tone()]),
)
wav_case("audio.too_short", lambda: tone(0.1))
wav_case("audio.too_long", lambda: tone(21.0))
wav_case("audio.low_rate", lambda: tone(rate=8000), "audio.mixed_rates", rate=8000)
wav_case("audio.rate", lambda: tone(rate=44100), "audio.mixed_rates", rate=44100)
wav_case("audio.stereo", lambda: np.stack([tone(), tone()], axis=1))
wav_case("audio.coarse", tone, subtype="PCM_U8")
wav_case("audio.wide_samples", tone, subtype="PCM_24")
wav_case("audio.wide_samples", tone, subtype="PCM_32", name="audio.wide_samples-32")
wav_case("audio.float", tone, subtype="FLOAT")


@case("audio.mixed_rates", "metadata.csv", "audio.rate")
def _(made: Made) -> None:
    made.wav(2, tone(rate=16000), 16000)
    made.write()


@case("audio.lossy", "metadata.csv:3: wavs/u2.ogg")
def _(made: Made) -> None:
    made.path(2).unlink()
    soundfile.write(made.root / "wavs" / "u2.ogg", tone(), RATE)
    made.write()


# The split. Sides hang on the texts alone.


@case("split.no_train", "metadata.csv", "audio.unlisted")
def _(made: Made) -> None:
    made.lines[:] = [line for line in made.lines if side_of(line)]
    made.write()


@case("split.no_valid", "metadata.csv", "audio.unlisted")
def _(made: Made) -> None:
    made.lines[:] = [line for line in made.lines if not side_of(line)]
    made.write()


@case("split.text_leaks", "metadata.csv:10", "text.duplicate")
def _(made: Made) -> None:
    """The same words with another mark, on the other side."""
    first = made.lines[0].split("|")[1]
    marks = (first.rstrip(".") + mark for mark in ("!", "?", "...", ";", ":", ",", "!!"))
    other = next(text for text in marks if side_of(f"x|{text}") != side_of(made.lines[0]))
    made.lines.append(f"u9|{other}")
    made.wav(9, tone(hz=300.0))
    made.write()


@case("split.audio_leaks", "metadata.csv:10", "audio.same_sound")
def _(made: Made) -> None:
    texts = (f"sentence {word}." for word in ("ten", "eleven", "twelve", "twenty", "thirty"))
    other = next(text for text in texts if side_of(f"x|{text}") != side_of(made.lines[0]))
    made.lines.append(f"u9|{other}")
    made.wav(9, tone(hz=200.0))
    made.write()


FIRST_VALID = next(k for k, word in enumerate(NUMBERS) if side_of(f"u|sentence {word}."))


@case("speaker.untrained", f"manifest.jsonl:{FIRST_VALID + 1}")
def _(made: Made) -> None:
    def change(rows: list[dict[str, object]]) -> None:
        for row, line in zip(rows, made.lines, strict=True):
            row["speaker"] = "bea" if side_of(line) else "ann"

    made.jsonl(change)
