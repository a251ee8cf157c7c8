"""What a person sees of faults: rows, one line, the exit code; and precisions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from profforce.app import main
from profforce.audio.griffin_lim import GriffinLim
from profforce.config import AudioSubtype, Precision, SampleConfig, TextConfig
from profforce.models.checkpoint import checkpoint_meta, save_checkpoint
from profforce.sampling.request import Request
from profforce.sampling.run import Failures
from profforce.sampling.synthesizer import Synthesizer
from profforce.text.tokenizer import Tokenizer
from tests.sampling.scripted import MEL, Spoilt, scripted

QUICK = ["griffin_lim_iterations=1", "pictures=false", "device=cpu", "max_seconds_per_symbol=0.1"]
TEXT = "the first of the sentences that are spoken here"
LONG = f"{TEXT}. another one that is about as long as that. and the last of all of them is here."
Rows = list[dict[str, Any]]


def cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Rows, list[str]]:
    code = main(["sample", *words, *QUICK])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err.splitlines()


@pytest.mark.parametrize(("flags", "expected"), [([], 0), (["--strict"], 1)])
def test_failures_are_one_line_and_with_strict_the_exit_code(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], expected: int
) -> None:
    texts = ["--text", TEXT, "--text", "Another one that fails."]
    words = ["--run", str(run), "--out", str(tmp_path), *texts, *flags, "retries=1"]
    code, rows, err = cli(capsys, *words)
    assert code == expected
    assert len(rows) == 2 and all(row["faults"] for row in rows)
    assert [row["retries"] for row in rows] == [2, 2]
    (line,) = [line for line in err if "have faults" in line]
    assert line.startswith("2 of 2 utterances have faults (") and "0001-the-first" in line


def speak(
    monkeypatch: pytest.MonkeyPatch, spoil: str, spoilt: Spoilt, **changes: Any
) -> Synthesizer:
    taker, _, _ = scripted(spoil, spoilt, **changes)
    meta = checkpoint_meta(taker.model, MEL, Tokenizer(TextConfig()), ())
    vocoder = GriffinLim(MEL, iterations=1)
    made = Synthesizer(taker.model, meta, taker.config, vocoder)
    made.take = taker
    monkeypatch.setattr(Synthesizer, "from_run", lambda *_: made)
    return made


@pytest.mark.parametrize("strict", [True, False])
def test_good_speech_is_no_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strict: bool,
) -> None:
    speak(monkeypatch, "", lambda identity, held: False)
    flags = ["--strict"] if strict else []
    code, rows, err = cli(capsys, "--run", "r", "--out", str(tmp_path), "--text", LONG, *flags)
    assert code == 0 and not [line for line in err if "faults" in line]
    assert rows[0]["faults"] == [] and rows[0]["retries"] == 0
    assert rows[0]["stopped_by"] == "stop" and rows[0]["warnings"] == []


def test_faults_of_pieces_are_timed_within_the_utterance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = speak(monkeypatch, "hang", lambda identity, held: False, max_symbols_per_piece=60)
    parts = made.script(Request(LONG, "text 1")).parts
    assert len(parts) == 3
    made.take.mirror.spoilt = lambda identity, held: identity == parts[-1].identity  # type: ignore[attr-defined]
    made.take.config = replace(made.take.config, retries=0)
    _, (row,), _ = cli(capsys, "--run", "r", "--out", str(tmp_path), "--text", LONG)
    (fault,) = row["faults"]
    last = row["pieces"][-1]
    assert fault["kind"] == "repeating" and set(fault) == {"kind", "start_s", "end_s", "detail"}
    assert last["start_s"] < fault["start_s"] < fault["end_s"] <= row["seconds"]


def test_the_worst_end_of_the_pieces_and_the_held_ones_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = speak(
        monkeypatch, "skip", lambda identity, held: False, max_symbols_per_piece=60, retries=1
    )
    parts = made.script(Request(LONG, "text 1")).parts
    made.take.mirror.spoilt = (
        lambda identity, held: (  # type: ignore[attr-defined]
            not held and identity not in {part.identity for part in parts[1:]}
        )
    )
    _, (row,), _ = cli(capsys, "--run", "r", "--out", str(tmp_path), "--text", LONG)
    assert row["retries"] == 2 == row["pieces"][0]["retries"]
    assert row["warnings"] == ["attention was held to the order of the text in pieces 1"]


def test_a_summary_names_a_few() -> None:
    failures = Failures()
    for number in range(9):
        kinds = [{"kind": "skipping"}, {"kind": "skipping"}, {"kind": "no_stop"}][: number % 4]
        failures.add({"wav": f"out/{number}.wav", "faults": kinds})
    assert len(failures) == 6
    said = failures.summary()
    assert said.startswith("6 of 9 utterances have faults (skipping in 6, no_stop in 2): 1.wav, ")
    assert "and 1 more" in said and "\n" not in said
    assert not Failures()


def test_what_went_to_stdout_is_named_by_its_number() -> None:
    failures = Failures()
    for faults in ([], [{"kind": "silence"}]):
        failures.add({"wav": "-", "faults": faults})
    assert failures.summary().startswith("1 of 2 utterances have faults (silence in 1): number 2;")


@pytest.mark.parametrize("precision", list(Precision), ids=str)
def test_a_precision_has_the_same_bytes_in_every_batch(run: Path, precision: Precision) -> None:
    config = SampleConfig(
        device="cpu",
        griffin_lim_iterations=1,
        precision=precision,
        subtype=AudioSubtype.FLOAT,
        stop_threshold=0.999,
        max_seconds_per_symbol=0.1,
        retries=0,
    )

    def audio(texts: list[str], **changes: Any) -> list[torch.Tensor]:
        synthesizer = Synthesizer.from_run(run, replace(config, **changes))
        return [spoken.audio for spoken in synthesizer.synthesize(texts)]

    texts = [TEXT, "Two.", "Number three is here."]
    together = audio(texts)
    for text, made in zip(texts, together, strict=True):
        assert torch.equal(audio([text])[0], made)
    exact = audio(texts, precision=Precision.float32)
    same = all(torch.equal(a, b) for a, b in zip(together, exact, strict=True))
    chosen = Synthesizer.from_run(run, config).take.precision
    assert same == (chosen == "float32")


def test_a_model_of_nan_is_a_failure_with_files(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Synthesizer.from_run(run, SampleConfig(device="cpu", griffin_lim_iterations=1))
    with torch.no_grad():
        made.model.mel_out.bias.fill_(float("nan"))
    tokenizer: Tokenizer = made.tokenizer
    meta = {**checkpoint_meta(made.model, made.mel, tokenizer, ("ann", "bob")), "score": 1.0}
    save_checkpoint(tmp_path / "checkpoints", 1, made.model.state_dict(), {}, meta)
    words = ["--run", str(tmp_path), "--out", str(tmp_path / "out"), "--text", TEXT, "--strict"]
    code, (row,), _ = cli(capsys, *words)
    assert code == 1 and row["faults"][0]["kind"] == "not_finite"
    assert soundfile.info(row["wav"]).frames == row["frames"] * 128


def test_settings_of_trust() -> None:
    with pytest.raises(ValueError, match=r"sample\.min_seconds_per_symbol must be <= "):
        SampleConfig(min_seconds_per_symbol=0.5)
    for name, value in {"retries": -1, "tail_frames": -1, "attention_window": 0}.items():
        with pytest.raises(ValueError, match=rf"sample\.{name} must be"):
            SampleConfig(**{name: value})  # type: ignore[arg-type]


def test_faults_are_settings_of_the_command_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--run", str(run), "--out", str(tmp_path), "--text", TEXT, "faults.max_hold_s=0"]
    code, _, err = cli(capsys, *words)
    assert code == 2 and "faults.max_hold_s must be > 0" in err[-1]
