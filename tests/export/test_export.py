"""Exported graphs speak as the model does: the same mel as ``sample`` for the same seed."""

import errno
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.app import main
from profforce.config import (
    CrossAttentionKind,
    MelConfig,
    ModelConfig,
    ModelKind,
    PositionsKind,
    SampleConfig,
    TextConfig,
)
from profforce.errors import UserError
from profforce.export import graphs, write
from profforce.export.onnx_loop import OnnxVoice, kept_by_dropout
from profforce.models.build import build_model
from profforce.models.checkpoint import checkpoint_meta, load_model, save_checkpoint
from profforce.nn import attention
from profforce.nn.attention import LinearSelfAttention
from profforce.nn.noise import PrenetNoise
from profforce.sampling.request import Request
from profforce.sampling.synthesizer import Synthesizer
from profforce.text.tokenizer import Tokenizer

MEL = MelConfig(
    sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000.0, num_mels=20
)
FORMS: dict[str, dict[str, Any]] = {
    "linear-R2-speakers": {"num_speakers": 3, "reduction_factor": 2},
    "relu-R1": {"feature_map": "relu", "reduction_factor": 1, "encoder_conv_layers": 0},
    "monotonic-relative": {
        "cross_attention": CrossAttentionKind.monotonic,
        "positions": PositionsKind.relative,
    },
    "forward-relative": {
        "cross_attention": CrossAttentionKind.forward,
        "positions": PositionsKind.relative,
        "recent_steps": 2,
    },
    "softmax-R3-rezero-quiet": {
        "attention": "softmax",
        "reduction_factor": 3,
        "rezero": True,
        "prenet_dropout": 0.0,
        "postnet_layers": 0,
    },
}
TEXTS = ["One two.", "A", "The third text is a longer one, with a comma.", "one two."]
CONFIG = SampleConfig(device="cpu", retries=0, attention_window=None, max_seconds_per_symbol=0.1)


def make_run(folder: Path, **changes: Any) -> Path:
    """An untrained run; the stop head is sure now and then."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(TextConfig())
    sizes = {"width": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    sizes |= {"feedforward_width": 32, "prenet_width": 8, "postnet_layers": 2, "postnet_width": 8}
    config = ModelConfig(**(sizes | changes))
    model = build_model(config, len(tokenizer.symbols), MEL.num_mels)
    model.set_mel_statistics(torch.linspace(-5, -3, 20), torch.linspace(1, 2, 20))
    with torch.no_grad():
        model.stop_out.bias.fill_(-2.2)
        model.stop_out.weight *= 3
        for name, parameter in model.named_parameters():
            if name.endswith("gates"):
                parameter.fill_(0.5)
    speakers = tuple(f"voice {n}" for n in range(model.config.num_speakers))
    meta = {**checkpoint_meta(model, MEL, tokenizer, speakers), "score": 1.0}
    save_checkpoint(folder / "checkpoints", 1, model.state_dict(), {}, meta)
    return folder


@pytest.fixture(scope="module", params=list(FORMS))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A run and what was exported from it; each export takes some seconds."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("export")
    run = make_run(folder / "run", **FORMS[request.param])
    write.export(run, folder / "onnx", CONFIG)
    return run, folder / "onnx"


ONE_FORM = pytest.mark.parametrize("pair", list(FORMS)[:1], indirect=True)
"""For what does not depend on the form."""


@pytest.mark.parametrize("threshold", [0.5, 0.08, 0.01, 0.999])
def test_the_loop_speaks_as_sample_does(pair: tuple[Path, Path], threshold: float) -> None:
    run, folder = pair
    config = replace(CONFIG, stop_threshold=threshold, seed=5)
    synthesizer = Synthesizer.from_run(run, config)
    names = json.loads((run / "checkpoints/step-1/meta.json").read_text())["speakers"] or [None]
    requests = [
        Request(text, "text", speaker=names[n % len(names)]) for n, text in enumerate(TEXTS)
    ]
    parts = [synthesizer.script(request).parts[0] for request in requests]
    voice = OnnxVoice(folder)
    voice.meta["ends"]["stop_threshold"] = threshold
    texts, who = [part.numbers for part in parts], [part.speaker for part in parts]
    spoken = voice.speak(texts, seed=5, speakers=who)
    for part, ours, truth in zip(parts, spoken, synthesizer.take(parts), strict=True):
        assert ours.stopped == (truth.stopped_by == "stop")
        if not ours.stopped:  # sample looks for the end of speech in such a run
            assert len(ours.mel) >= len(truth.mel)
        frames = len(truth.mel) if not ours.stopped else len(ours.mel)
        np.testing.assert_allclose(ours.mel[:frames], truth.mel, atol=1e-4)
        np.testing.assert_allclose(
            ours.stop_probability[:frames], truth.stop_probability, atol=1e-4
        )
        steps = truth.alignments.shape[1]
        np.testing.assert_allclose(ours.alignment[:, :steps], truth.alignments, atol=1e-4)
        (alone,) = voice.speak([part.numbers], seed=5, speakers=[part.speaker])
        np.testing.assert_allclose(alone.mel, ours.mel, atol=1e-4)


@ONE_FORM
def test_the_same_mel_is_the_same_audio(pair: tuple[Path, Path]) -> None:
    run, folder = pair
    config = replace(CONFIG, griffin_lim_iterations=2, stop_threshold=0.08)
    synthesizer = Synthesizer.from_run(run, config)
    voice = OnnxVoice(folder)
    voice.meta["ends"]["stop_threshold"] = 0.08
    for text in ("one two.", "a"):
        (truth,) = synthesizer.synthesize([text])
        (ours,) = voice.speak([voice.numbers(text)])
        if ours.stopped:
            audio = synthesizer.vocoder(torch.from_numpy(ours.mel))
            torch.testing.assert_close(audio, truth.audio, atol=2e-3, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4),
    st.integers(0, 500),
    st.integers(1, 3),
    st.floats(0, 0.99),
)
def test_noise_is_that_of_training(
    seed: int, identities: list[int], first: int, layers: int, p: float
) -> None:
    prenet = {"layers": layers, "width": 5, "dropout": p}
    ours = kept_by_dropout(prenet, seed, np.array(identities), first, 7)
    noise = PrenetNoise(seed, torch.tensor(identities))
    for layer in range(layers):
        truth = noise.keep(layer, torch.arange(first, first + 7), 5, p)
        np.testing.assert_array_equal(ours[:, :, layer], truth.transpose(0, 1).numpy())


@ONE_FORM
def test_the_folder_speaks_without_torch_or_profforce(pair: tuple[Path, Path]) -> None:
    code = (
        "import sys; from onnx_loop import OnnxVoice; v = OnnxVoice('.');"
        "(s,) = v.speak([v.numbers('one two.')], seed=5); print(s.mel.shape[1], s.mel.sum());"
        "assert not {'torch', 'profforce', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=pair[1], capture_output=True, text=True, check=True
    )
    voice = OnnxVoice(pair[1])
    (spoken,) = voice.speak([voice.numbers("one two.")], seed=5)
    channels, total = done.stdout.split()
    assert int(channels) == 20 and float(total) == pytest.approx(float(spoken.mel.sum()), rel=1e-4)


def test_meta_says_what_the_graphs_mean(pair: tuple[Path, Path]) -> None:
    meta = json.loads((pair[1] / "meta.json").read_text())
    model, known = load_model(pair[0] / "checkpoints/step-1", torch.device("cpu"))
    assert meta["tokenizer"] == known["tokenizer"] and meta["mel"] == known["mel"]
    assert meta["reduction_factor"] == model.config.reduction_factor
    assert len(meta["states"]) >= 2 * len(model.decoder) == len(meta["memories"]) - 1
    names = {path.name for path in pair[1].iterdir()}
    assert names == {*meta["graphs"].values(), "meta.json", "onnx_loop.py"}
    assert "blake2b" in meta["prenet"]["rule"] and meta["ends"]["tail_frames"] == 3


@ONE_FORM
@pytest.mark.parametrize(
    ("texts", "options", "said"),
    [
        ([], {}, "nothing to say"),
        ([[3], []], {}, "nothing to say"),
        ([[3, 400]], {}, "numbered 0 to"),
        ([[-1]], {}, "numbered 0 to"),
        ([[3]], {"speakers": [9]}, "give a speaker from 0"),
        ([[3]], {"speakers": [0, 0]}, "give a speaker from 0"),
        ([[3]], {"identities": [1, 2]}, "give an identity a text, got 2 for 1"),
        ([[3]], {"identities": []}, "give an identity a text, got 0 for 1"),
    ],
    ids=["none", "empty", "beyond", "negative", "speaker", "speakers", "identities", "no_identity"],
)
def test_what_the_loop_refuses(
    pair: tuple[Path, Path], texts: list[list[int]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        OnnxVoice(pair[1]).speak(texts, **options)


@ONE_FORM
def test_text_is_taken_as_the_model_reads_it(pair: tuple[Path, Path]) -> None:
    voice = OnnxVoice(pair[1])
    assert voice.numbers("a b.") == Tokenizer(TextConfig()).encode("a b.")
    for text in ("Ä", ""):
        with pytest.raises(ValueError, match="no text of this alphabet"):
            voice.numbers(text)


def test_a_folder_that_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not the meta\.json of 'profforce export'"):
        OnnxVoice(tmp_path)
    (tmp_path / "meta.json").write_text('{"onnx_format": 99}')
    with pytest.raises(ValueError, match="got 99, expected 1"):
        OnnxVoice(tmp_path)


def test_the_command_tells_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def exported(run: Path, out: Path, config: SampleConfig) -> write.Exported:
        assert (run, config.stop_threshold, config.checkpoint) == (tmp_path, 0.25, "best")
        return write.Exported(out, "step-1", 2_500_000, 1e-6)

    monkeypatch.setattr(write, "export", exported)
    words = ["export", "--run", str(tmp_path), "--out", "there", "stop_threshold=0.25"]
    assert main([*words, "checkpoint=best"]) == 0
    row = {"folder": "there", "checkpoint": "step-1", "megabytes": 2.5, "largest_difference": 1e-6}
    assert json.loads(capfd.readouterr().out) == row


@pytest.mark.parametrize(
    "word",
    ["device=cpu", "speaker=ann", "vocoder=hifigan", "precision=bfloat16", "faults.max_hold_s=1"],
    ids=lambda word: word.partition("=")[0],
)
def test_a_setting_that_means_nothing_is_refused_in_one_line(
    word: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--run", str(tmp_path), "--out", "there", "seed_=1"]) == 2
    assert "no config key" in capfd.readouterr().err  # a wrong word is told as such
    words = ["export", "--run", str(tmp_path), "--out", "there", "checkpoint=best", word]
    assert main(words) == 2
    (line,) = capfd.readouterr().err.splitlines()
    said = f"error: override '{word}': this setting means nothing to an export; expected checkpoint"
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OSError(errno.ENOSPC, "no room"), "onnx: cannot write the graphs; got no room; make room"),
        (UserError("a mistake"), "a mistake"),
        (OSError("no source"), "a layer of this model cannot be exported; got no source"),
        (KeyError("op"), "encoder.onnx: a layer of this model cannot be exported; got 'op'"),
    ],
    ids=["disk", "user", "source", "layer"],
)
def test_a_failure_is_told_as_what_it_is(
    fault: Exception,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def failing(*words: object, **options: object) -> None:
        raise fault

    monkeypatch.setattr(write, "_require_packages", lambda: None)
    monkeypatch.setattr("torch.onnx.export", failing)
    run, out = make_run(tmp_path / "run"), tmp_path / "onnx"
    assert main(["export", "--run", str(run), "--out", str(out)]) == 2
    assert said in capfd.readouterr().err.splitlines()[-1]
    assert not [*out.iterdir()]


def test_a_full_disk_that_a_library_hides_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(graph: object, inputs: object, path: str, **options: object) -> None:
        Path(path).symlink_to("/dev/full")
        raise RuntimeError("wrote 4 of 9 items")

    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(write, "_require_packages", lambda: None)
    monkeypatch.setattr("torch.onnx.export", failing)
    with pytest.raises(UserError, match="cannot write the graphs; got No space left"):
        write.export(make_run(tmp_path / "run"), tmp_path / "onnx", CONFIG)


class Odd(LinearSelfAttention):
    """A layer of somebody's own."""


def test_a_layer_of_ones_own_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(attention._SELF_ATTENTION, "odd", Odd)
    run = make_run(tmp_path / "run", attention="odd")
    assert main(["export", "--run", str(run), "--out", str(tmp_path / "onnx")]) == 2
    err = capfd.readouterr().err.splitlines()
    assert err[-1].startswith("error: decoder layer 1: this layer has no ONNX form; got Odd")
    assert not (tmp_path / "onnx").exists()


def test_a_state_that_does_not_begin_with_zeros_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    model, _ = load_model(run / "checkpoints/step-1", torch.device("cpu"))
    monkeypatch.setattr(graphs, "_leaves", lambda state: [torch.ones(2, 3)])
    with pytest.raises(UserError, match="whose state does not begin with zeros"):
        graphs.state_specs(graphs.exportable(model))


def test_another_network_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", kind=ModelKind.tacotron2)
    assert main(["export", "--run", str(run), "--out", str(tmp_path / "onnx")]) == 2
    err = capfd.readouterr().err.splitlines()
    assert err[-1].startswith("error: the model: this model has no ONNX form; got model.kind=taco")
    assert not (tmp_path / "onnx").exists()


@ONE_FORM
def test_graphs_that_say_something_else_are_refused(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load_model(pair[0] / "checkpoints/step-1", torch.device("cpu"))
    assert write.largest_difference(model, pair[1]) < 1e-4
    with torch.no_grad():
        model.decoder_positions.alpha += 0.1
    with pytest.raises(UserError, match="do not say what the model says"):
        write.largest_difference(model, pair[1])


def test_missing_packages_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"'onnxscript' is not installed; run: pip install 'prof"):
        write.export(tmp_path, tmp_path, CONFIG)


@ONE_FORM
def test_the_most_frames_are_those_of_sample(pair: tuple[Path, Path]) -> None:
    voice = OnnxVoice(pair[1])
    voice.meta["ends"]["stop_threshold"] = 2.0
    (spoken,) = voice.speak([voice.numbers("a")])
    assert not spoken.stopped and len(spoken.mel) == math.ceil(2.0 * 8000 / 128)
