import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.audio.files import read_audio, write_audio
from profforce.config import MelConfig, ModelConfig, TextConfig
from profforce.errors import UserError
from profforce.models.checkpoint import checkpoint_meta, save_checkpoint
from profforce.models.transformer import TransformerTTS
from profforce.text.normalize import normalize_text
from profforce.text.tokenizer import Tokenizer

pytest.importorskip("jiwer")
TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
try:
    import demo_score
    import judge
    from canonical import canonical
finally:
    sys.path.remove(str(TOOLS))

SAME = [
    ("4:30 p.m.", "four thirty p m"),
    ("5 PM", "five pm."),
    ("9.30 a.m.", "nine thirty am"),
    ("The train leaves at 9.30.", "the train leaves at nine thirty"),
    ("It is 3:28 in the morning.", "It is three twenty eight in the morning."),
    ("9:00", "nine o'clock"),
    ("9 o’clock", "nine"),
    ("$4.50", "four dollars and fifty cents"),
    ("$0.50", "fifty cents"),
    ("$88", "eighty-eight dollars"),
    ("$1", "one dollar"),
    ("$1,000", "one thousand dollars"),
    ("$2.5 million", "two point five million dollars"),
    ("October 28th", "october twenty eighth"),
    ("January 8", "January the eighth"),
    ("Oct. 3", "october third"),
    ("5421", "five four two one"),
    ("5-4-2-1", "five, four, two, one."),
    ("54 21", "five four two one"),
    ("703 tickets", "seven hundred three tickets"),
    ("703", "seven hundred and three"),
    ("7 oh 9", "seven zero nine"),
    ("1,234", "one thousand two hundred thirty four"),
    ("2,000", "two thousand"),
    ("1500", "fifteen hundred"),
    ("100", "a hundred"),
    ("1 million", "a million"),
    ("2026", "twenty twenty-six"),
    ("2005", "two thousand five"),
    ("1905", "nineteen oh five"),
    ("the 1990s", "the nineteen nineties"),
    ("21st", "twenty-first"),
    ("123rd", "one hundred and twenty third"),
    ("3.5%", "three point five per cent"),
    ("20°C", "twenty degrees celsius"),
    ("-5", "minus five"),
    ("No. 5", "number five"),
    ("Dr. Smith", "doctor smith"),
    ("Mr. O’Brien", "mister obrien"),
    ("It’s grey.", "its gray"),
    ("Set a timer for 20 minutes.", "set a timer for twenty minutes"),
    ("naïve", "naive"),
]
DIFFERENT = [
    ("4:30 p.m.", "four thirty a m"),
    ("$4.50", "four dollars and fifteen cents"),
    ("twenty one", "twenty one one"),
    ("thirteen", "thirty"),
    ("one hundred", "one thousand"),
    ("bread and butter", "bread butter"),
    ("the first one", "the one"),
]


@pytest.mark.parametrize(("written", "spoken"), SAME)
def test_two_spellings_of_the_same_speech_agree(written: str, spoken: str) -> None:
    assert canonical(written) == canonical(spoken)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_speech_stays_different(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_canonical_form_is_plain_and_final(text: str) -> None:
    form = canonical(text)
    assert all((word.isdigit() and len(word) == 1) or word.isalpha() for word in form.split())


@given(st.integers(0, 999_999_999))
@settings(max_examples=100, deadline=None)
def test_every_number_agrees_with_the_front_ends_reading(number: int) -> None:
    digits = " ".join(str(number))
    assert canonical(normalize_text(f"{number:,}")) == digits == canonical(f"{number:,}")


@given(st.integers(1, 12), st.integers(1, 59), st.sampled_from(["a.m.", "p.m."]))
@settings(max_examples=60, deadline=None)
def test_every_time_agrees_with_the_front_ends_reading(hour: int, minute: int, half: str) -> None:
    written = f"at {hour}:{minute:02} {half}"
    assert canonical(written) == canonical(normalize_text(written))


@given(st.integers(0, 5000), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_every_price_agrees_with_the_front_ends_reading(whole: int, cents: int) -> None:
    written = f"${whole:,}.{cents:02}"
    assert canonical(written) == canonical(normalize_text(written))


def test_errors_are_counted_by_kind() -> None:
    one = judge.compare("Put the red box here.", "put red fox here now")
    assert (one.words, one.deletions, one.substitutions, one.insertions) == (5, 1, 1, 1)
    assert one.wer == pytest.approx(0.6)
    silent = judge.compare("Two words.", "")
    assert silent.wer == 1.0 and silent.character_errors == silent.characters
    total = judge.summary([one, silent, judge.compare("a b c", "a b c")])
    assert total["wer"] == pytest.approx(0.5) and total["flawless"] == 1
    assert [row["text"] for row in judge.worst([one, silent], 1)] == ["2 words"]
    with pytest.raises(UserError, match="nothing to score"):
        judge.compare("...", "hello")


class FakeTranscriber:
    """Hears what the first sample's sign says: the right words or the wrong ones."""

    def __init__(self, num_threads: int = 1) -> None:
        assert num_threads in (1, 2)

    def __call__(self, audio: torch.Tensor) -> str:
        return "Call 5-4-2." if audio.mean() > 0 else "call five"


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(demo_score, "Transcriber", FakeTranscriber)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for name, level in (("good", 0.5), ("bad", -0.5)):
            write_audio(tmp_path / f"{name}.wav", torch.full((4000,), level), 22050)
            row = {"wav": f"{name}.wav", "text": "Call five four two."}
            file.write(json.dumps(row) + "\n\n")
    yield tmp_path / "rows.jsonl"


def test_rows_are_scored_and_printed_as_json(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo_score.main(["--rows", str(rows), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["utterances"] == 2 and result["wer"] == 0.25 and result["flawless"] == 1
    assert [row["wer"] for row in result["rows"]] == [0.0, 0.5]
    assert result["worst"][0]["wav"].endswith("bad.wav")
    assert demo_score.main(["--rows", str(rows), "--json", str(rows.parent / "s.json")]) == 0
    assert "rows" not in json.loads(capsys.readouterr().out)
    assert json.loads((rows.parent / "s.json").read_text()) == result


def test_mistakes_are_one_line(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rows.parent / "bad.jsonl").write_text('{"wav": 1}\n')
    (rows.parent / "none.jsonl").write_text("\n")
    for arguments, reason in (
        (["--rows", str(rows.parent / "bad.jsonl")], "bad.jsonl:1"),
        (["--rows", str(rows.parent / "none.jsonl")], "no rows"),
        (["--rows", str(rows.parent / "missing")], "cannot read the rows"),
        ([], "give --run and --sentences"),
    ):
        assert demo_score.main(arguments) == 1
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1


def test_free_runs_report_how_they_ended() -> None:
    heard = [judge.compare("a b", "a b"), judge.compare("a b", "a")]
    spoken = [{"stopped_by": "stop", "seconds": 1.0}, {"stopped_by": "max_frames"}]
    result = demo_score.report(heard, spoken)
    assert result["stopped_by"] == {"stop": 1, "max_frames": 1}
    assert result["rows"][0]["seconds"] == 1.0 and "seconds" not in result["rows"][1]


@pytest.fixture
def tiny_run(tmp_path: Path) -> Path:
    """A run folder whose untrained model babbles."""
    mel = MelConfig(
        sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000, num_mels=20
    )
    tokenizer = Tokenizer(TextConfig())
    config = ModelConfig(
        width=16, num_heads=2, encoder_layers=1, decoder_layers=2, feedforward_width=32,
        prenet_width=8, postnet_layers=1, postnet_width=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = TransformerTTS(config, num_symbols=len(tokenizer.symbols), num_mels=20)
    meta = {**checkpoint_meta(model, mel, tokenizer, ()), "score": 1.0}
    save_checkpoint(tmp_path / "run" / "checkpoints", 1, model.state_dict(), {}, meta)
    return tmp_path / "run"


def test_a_run_is_scored_beside_its_corpus(
    rows: Path, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    write_audio(corpus / "wavs" / "a.wav", torch.full((4000,), 0.5), 8000)
    (corpus / "metadata.csv").write_text("a|Call five four two.\n")
    (tmp_path / "lines.txt").write_text("Call five.\n\nHello there.\nNot this one.\n")
    arguments = f"--run {tiny_run} --sentences {tmp_path / 'lines.txt'} --num 2 --seed 3"
    beside = f"--corpus {corpus} --valid-fraction 0.999999"
    assert demo_score.main([*arguments.split(), *beside.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["free_running"]["utterances"] == 2
    assert sum(result["free_running"]["stopped_by"].values()) == 2
    assert result["corpus"]["wer"] == 0.0
    assert result["corpus_vocoded"]["utterances"] == 1
    assert demo_score.main(["--run", str(tiny_run), "--sentences", str(tmp_path / "no")]) == 1
    assert "cannot read the sentences" in capsys.readouterr().err


def test_vocoded_audio_keeps_its_texts(rows: Path, tmp_path: Path) -> None:
    options = SimpleNamespace(vocoder="griffin_lim", vocoder_checkpoint=None)
    said = judge.read_rows(rows)
    vocoded = demo_score.vocode(said, MelConfig(), options, tmp_path / "v")
    assert [one.text for one in vocoded] == [one.text for one in said]
    assert all(len(read_audio(one.wav, 22050)) == 4000 // 256 * 256 for one in vocoded)


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(m) is None for m in ("faster_whisper", judge.WEIGHTS, "hibari")),
    reason="needs the extras judges and demo",
)
def test_the_real_judge_understands_speech(tmp_path: Path) -> None:
    from hibari import Hibari

    text = "The meeting on Wednesday is at four thirty in the garden."
    speech = torch.from_numpy(Hibari()(text, seed=0))
    write_audio(tmp_path / "a.wav", speech, 24000)
    (heard,) = judge.judge([judge.Said(tmp_path / "a.wav", text)], judge.Transcriber())
    assert heard.wer <= 0.1
