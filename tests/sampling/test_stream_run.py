"""``profforce sample --stream``: pipes, files that grow, and what ends them early."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from profforce.app import main
from profforce.config import AudioFormat, AudioSubtype, SampleConfig
from profforce.errors import UserError
from profforce.sampling.stream_output import AudioSink, encoded, wav_header
from profforce.sampling.stream_run import stream_sample
from profforce.sampling.synthesizer import Synthesizer

FAST = SampleConfig(device="cpu", griffin_lim_iterations=2, retries=0, attention_window=None)
QUICK = ["device=cpu", "griffin_lim_iterations=2", "retries=0", "attention_window=null"]
TEXTS = ["One two.", "The second text, which is longer."]
subtypes = pytest.mark.parametrize("subtype", list(AudioSubtype))


@subtypes
@given(values=st.lists(st.floats(-1.5, 1.5, width=32), min_size=1, max_size=50))
def test_samples_are_what_libsndfile_writes(subtype: AudioSubtype, values: list[float]) -> None:
    audio, file = np.array(values, dtype=np.float32), io.BytesIO()
    clipped = audio if subtype is AudioSubtype.FLOAT else audio.clip(-1, 1)
    soundfile.write(file, clipped, 8000, format="WAV", subtype=str(subtype))
    data = encoded(audio, 8000, subtype)
    assert file.getvalue().removesuffix(bytes(len(data) % 2)).endswith(data)
    made = io.BytesIO(wav_header(8000, subtype, len(data)) + data + bytes(len(data) % 2))
    if subtype is not AudioSubtype.FLOAT:  # libsndfile adds the peak of floats
        assert made.getvalue() == file.getvalue()
    file.seek(0)
    ours, theirs = soundfile.read(made), soundfile.read(file)
    assert np.array_equal(ours[0], theirs[0]) and ours[1] == theirs[1] == 8000


def test_files_grow_and_hold_what_the_row_says(run: Path, tmp_path: Path) -> None:
    voice = Synthesizer.from_run(run, FAST)
    rows = []
    for text, row in zip(TEXTS, stream_sample(FAST, run, TEXTS, tmp_path), strict=True):
        rows.append(json.loads(json.dumps(row)))
        audio, rate = soundfile.read(rows[-1]["wav"])
        assert (len(audio) / rate, rate) == (pytest.approx(rows[-1]["seconds"]), 8000)
        chunks = list(voice.stream(text))
        whole = np.concatenate([chunk.audio for chunk in chunks])
        np.testing.assert_allclose(audio, whole.clip(-1, 1), atol=2 / 2**15)
        assert rows[-1]["frames"] == sum(len(chunk.mel) for chunk in chunks)
        assert 0 < rows[-1]["first_audio_s"] <= rows[-1]["real_time_factor"] * rows[-1]["seconds"]
    assert [row["text"] for row in rows] == TEXTS
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0001-one-two.wav",
        "0002-the-second-text-which-is-longer.wav",
    ]


def test_a_row_has_the_keys_of_the_whole(run: Path, tmp_path: Path) -> None:
    from profforce.sampling.run import sample

    (whole,) = sample(replace(FAST, pictures=False), run, TEXTS[:1], tmp_path / "a")
    (row,) = stream_sample(FAST, run, TEXTS[:1], tmp_path / "b")
    assert set(row) == {*whole, "first_audio_s"}
    for key in ("text", "frames", "seconds", "stopped_by", "faults", "alignment_coverage"):
        assert row[key] == whole[key]
    pieces, whole_pieces = row["pieces"], whole["pieces"]
    assert isinstance(pieces, list) and isinstance(whole_pieces, list)
    assert pieces == whole_pieces


@pytest.mark.parametrize("form", ["wav", "raw"])
def test_a_pipe_gets_the_audio_and_stderr_the_rows(
    run: Path, capfdbinary: pytest.CaptureFixture[bytes], form: str
) -> None:
    texts = [word for text in TEXTS for word in ("--text", text)]
    words = ["--run", str(run), "--stream", "--out", "-", *texts, *QUICK, f"format={form}"]
    assert main(["sample", *words]) == 0
    out, err = capfdbinary.readouterr()
    rows = [json.loads(line) for line in err.splitlines() if line.startswith(b"{")]
    seconds = sum(row["seconds"] for row in rows) + FAST.paragraph_pause_s
    data = out[44:] if form == "wav" else out
    assert len(rows) == 2 and {row["wav"] for row in rows} == {"-"}
    assert len(data) / 2 / 8000 == pytest.approx(seconds, abs=1e-3)
    if form == "wav":
        assert out[:4] == b"RIFF" and struct.unpack("<I", out[40:44])[0] == 2**32 - 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--stream", "--out", "x", "format=flac"], "flac cannot be streamed"),
        (["--stream", "--out", "x", "loudness_lufs=-20"], "cannot be brought to a loudness"),
        (["--out", "-"], "add --stream"),
        (["--stream", "--out", "-", "chunk_s=0"], "chunk_s must be > 0"),
    ],
)
def test_what_cannot_be_streamed_is_one_line_before_anything_is_written(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "--run", str(run), "--text", "Hello.", *words, *QUICK]) == 2
    out, err = capfd.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert reason in line and out == ""
    assert list(tmp_path.iterdir()) == []


@subtypes
def test_a_closed_file_is_as_libsndfile_writes_it(tmp_path: Path, subtype: AudioSubtype) -> None:
    audio = np.linspace(-1.2, 1.2, 101, dtype=np.float32)
    with AudioSink(tmp_path / "a.wav", 8000, AudioFormat.wav, subtype) as sink:
        sink.write(audio[:40])
        sink.write(audio[40:])
    clipped = audio if subtype is AudioSubtype.FLOAT else audio.clip(-1, 1)
    soundfile.write(tmp_path / "b.wav", clipped, 8000, subtype=str(subtype))
    ours, theirs = (soundfile.read(tmp_path / f"{name}.wav")[0] for name in "ab")
    assert np.array_equal(ours, theirs)
    if subtype is not AudioSubtype.FLOAT:
        assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_a_file_that_is_left_early_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with (
        pytest.raises(KeyboardInterrupt),
        AudioSink(path, 8000, AudioFormat.wav, AudioSubtype.PCM_16) as sink,
    ):
        sink.write(np.full(100, 0.5, dtype=np.float32))
        assert path.stat().st_size == 244  # it is there to be heard already
        raise KeyboardInterrupt
    audio, _ = soundfile.read(path)
    assert len(audio) == 100


def test_audio_that_is_no_number_and_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    kinds: Any = (8000, AudioFormat.wav, AudioSubtype.PCM_16)
    with pytest.raises(UserError, match="cannot write audio"):
        AudioSink(tmp_path / "no/folder.wav", *kinds)
    with AudioSink(tmp_path / "a.wav", *kinds) as sink, pytest.raises(UserError, match="nan"):
        sink.write(np.array([np.nan], dtype=np.float32))


LONG = " ".join(f"This is sentence number {n} of many." for n in range(400))


def speaking(run: Path, out: str, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "long.txt").write_text(LONG, encoding="utf-8")
    words = ["--run", str(run), "--stream", "--out", out, "--input", "long.txt", *QUICK]
    # Ctrl-C interrupts, also where the tests run in the background of a shell, which ignores it
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from profforce.app import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "sample", *words, "stop_threshold=0.999"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.slow
def test_nobody_listens_any_more(run: Path, tmp_path: Path) -> None:
    process = speaking(run, "-", tmp_path)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1000).startswith(b"RIFF")
    process.stdout.close()
    assert process.wait(60) == 1
    assert b"Traceback" not in process.stderr.read()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_whole_file(
    run: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process, until = speaking(run, "out", tmp_path), time.monotonic() + 100
    while time.monotonic() < until and process.poll() is None:
        files = list((tmp_path / "out").glob("*.wav")) if (tmp_path / "out").is_dir() else []
        if files and files[0].stat().st_size > 50_000:
            break
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == code, process.stderr and process.stderr.read()
    assert process.stderr is not None and b"Traceback" not in process.stderr.read()
    audio, rate = soundfile.read(files[0])
    assert rate == 8000 and len(audio) * 2 + 44 == files[0].stat().st_size


@pytest.mark.parametrize("subtype", [AudioSubtype.PCM_16, AudioSubtype.PCM_24, AudioSubtype.FLOAT])
def test_a_chunk_cut_in_the_middle_leaves_a_file_of_whole_samples(
    tmp_path: Path, subtype: AudioSubtype
) -> None:
    path = tmp_path / "cut.wav"
    with AudioSink(path, 8000, AudioFormat.wav, subtype) as sink:
        sink.write(np.linspace(-0.5, 0.5, 101, dtype=np.float32))
        sink._file.write(encoded(np.zeros(7, np.float32), 8000, subtype)[:-1])
    audio, rate = soundfile.read(path)
    assert (len(audio), rate) == (107, 8000)
    assert abs(audio[100] - 0.5) < 1e-4 and not audio[101:].any()
