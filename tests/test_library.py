"""``from profforce import Synthesizer``, as a person uses it; the examples of the page are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import profforce
from profforce import Chunk, Speech, Synthesizer, UserError
from profforce.config import AudioSubtype, SampleConfig
from profforce.sampling.run import sample
from tests.sampling.conftest import run as make_run

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/library.md").read_text(encoding="utf-8")
FAST = SampleConfig(device="cpu", griffin_lim_iterations=2, retries=0, attention_window=None)
LONG = "One two, three. Four five! Is it six?"

run = make_run


def test_torch_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys, profforce; assert 'torch' not in sys.modules, 'torch'; "
        "assert 'Synthesizer' in dir(profforce); "
        "from profforce import UserError; assert 'torch' not in sys.modules; "
        "from profforce import Synthesizer; assert 'torch' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_what_is_offered_is_there_and_nothing_else() -> None:
    for name in profforce.__all__:
        assert getattr(profforce, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Synthesiser'"):
        _ = profforce.Synthesiser  # type: ignore[attr-defined]


def test_the_bytes_are_those_of_the_command(run: Path, tmp_path: Path) -> None:
    config = SampleConfig(device="cpu", griffin_lim_iterations=2, seed=3, pictures=False)
    texts = ["One two.", LONG]
    rows = list(sample(config, run, texts, tmp_path / "files"))
    voice = Synthesizer.from_run(run, SampleConfig(device="cpu", griffin_lim_iterations=2))
    spoken = voice.speak(texts, seed=3)
    assert isinstance(spoken, list) and len(spoken) == 2
    for number, (speech, row) in enumerate(zip(spoken, rows, strict=True)):
        path = speech.save(tmp_path / f"new/{number}.wav", mel=tmp_path / f"new/{number}.npy")
        assert path.read_bytes() == Path(str(row["wav"])).read_bytes()
        assert np.array_equal(np.load(tmp_path / f"new/{number}.npy"), np.load(str(row["mel"])))
        assert round(speech.seconds, 4) == row["seconds"] and speech.warnings == row["warnings"]
        assert str(speech.stopped_by) == row["stopped_by"] and speech.retries == row["retries"]
    alone = voice.speak(LONG, seed=3)
    assert np.array_equal(alone.audio, spoken[1].audio)
    assert not np.array_equal(voice.speak(LONG, seed=4).mel, alone.mel)


def test_a_speech_holds_what_it_says(run: Path) -> None:
    voice = Synthesizer.from_run(run, FAST).with_settings(max_symbols_per_piece=20)
    speech = voice.speak(LONG)
    assert isinstance(speech, Speech)
    assert speech.audio.dtype == speech.mel.dtype == np.float32
    assert len(speech.audio) == 128 * len(speech.mel) and speech.mel.shape[1] == 20
    assert len(speech.alignments) == len(speech.symbols) == 3
    for alignment, symbols in zip(speech.alignments, speech.symbols, strict=True):
        assert alignment.shape[1] == len(symbols)
    steps, symbols_a = speech.alignments[0].shape
    assert speech.alignment.shape[0] == sum(len(a) for a in speech.alignments)
    assert np.array_equal(speech.alignment[:steps, :symbols_a], speech.alignments[0])
    assert not speech.alignment[:steps, symbols_a:].any()
    assert speech._repr_html_().startswith("<audio")
    for fault in speech.faults:
        assert 0 <= fault.start_s <= fault.end_s <= speech.seconds + 0.05  # whole steps


def test_speakers_have_names(run: Path) -> None:
    voice = Synthesizer.from_run(run, FAST)
    assert voice.speakers == ["ann", "bob"]
    ann, bob = (voice.speak("Hello there.", speaker=name).mel for name in ("ann", "bob"))
    assert ann.shape != bob.shape or not np.array_equal(ann, bob)
    chunk: Chunk
    *_, chunk = voice.stream("Hello there.", speaker="bob")
    assert chunk.last
    with pytest.raises(UserError, match="no speaker 'bop'; did you mean 'bob'"):
        voice.speak("Hello.", speaker="bop")


def test_settings_by_name_go_before_those_of_the_config(run: Path) -> None:
    voice = Synthesizer.from_run(str(run), FAST, precision="bfloat16", checkpoint="step-1")
    assert voice.config.precision == "bfloat16" and voice.config.retries == 0
    assert voice.take.precision == "bfloat16"
    for unknown, reason in (
        ({"vocoder": "hifigam"}, "unknown vocoder 'hifigam'; did you mean 'hifigan'"),
        ({"precision": "float16"}, "expected one of auto, float32, bfloat16, int8"),
        ({"vocoder": "vocos"}, "set vocoder_checkpoint=PATH"),
    ):
        with pytest.raises(UserError, match=reason):
            Synthesizer.from_run(run, FAST, **unknown)  # type: ignore[arg-type]
    assert voice.with_settings(seed=None) is voice


def test_files_of_every_kind(run: Path, tmp_path: Path) -> None:
    voice = Synthesizer.from_run(run, FAST)
    speech = voice.with_settings(subtype=AudioSubtype.PCM_24, sample_rate=16000).speak("One.")
    assert speech.sample_rate == 16000
    for suffix in ("wav", "flac"):
        info = soundfile.info(speech.save(tmp_path / f"a.{suffix}"))
        assert (info.samplerate, info.subtype, info.frames) == (16000, "PCM_24", len(speech.audio))
    assert speech.save(tmp_path / "a.raw").stat().st_size == 3 * len(speech.audio)
    with pytest.raises(UserError, match=r"unknown audio format; expected \.wav, \.flac, \.raw"):
        speech.save(tmp_path / "a.mp3")


def test_the_examples_of_the_page_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/demo").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(examples) == 4
    space: dict[str, object] = {"__name__": "library"}
    for example in examples:
        exec(compile(example, "library.md", "exec"), space)
    speech = space["speech"]
    assert isinstance(speech, Speech)
    assert soundfile.info("late.wav").frames == len(speech.audio)
    assert soundfile.info("stream.wav").frames > 0
    assert {"late.wav", "stream.wav", "runs"} == {path.name for path in tmp_path.iterdir()}


def test_the_page_names_every_field() -> None:
    for kind in (Speech, Chunk):
        rows = PAGE.split(f"field of `{kind.__name__}`")[1].split("\n\n")[0]
        named = set(re.findall(r"`(\w+)", rows))
        fields = {*kind.__dataclass_fields__, "seconds"} - {"text", "subtype"}
        assert fields <= named, fields - named
