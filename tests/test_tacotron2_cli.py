"""``model=tacotron2`` through every command that takes a run."""

import json
from pathlib import Path

import pytest
from tiny_run import made_corpus

from profforce.app import main

SMALL = [
    *["model=tacotron2", "model.width=32", "model.prenet_width=16", "model.attention_width=16"],
    *["model.encoder_conv_layers=1", "model.postnet_layers=2", "model.postnet_width=16"],
    *["model.location_channels=4", "model.location_kernel=7"],
]


@pytest.mark.slow
def test_it_trains_goes_on_speaks_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, *made_corpus("corpus"), "trainer.steps=3", "trainer.batch_size=4"]
    words += ["method.start_step=1", "method.interval=1", "freerun.pool_size=4"]
    words += ["trainer.evaluate_every=3", "trainer.checkpoint_every=3", "hydra.run.dir=run"]
    assert main(["train", *words]) == 0
    assert main(["train", "--resume", "run", "trainer.steps=5"]) == 0
    meta = json.loads((tmp_path / "run/checkpoints/step-5/meta.json").read_text())
    assert (meta["step"], meta["model"]["kind"]) == (5, "tacotron2")
    capfd.readouterr()
    quick = ["griffin_lim_iterations=2", "max_seconds_per_symbol=0.05"]
    sample = ["sample", "--run", "run", "--out", "out", "--text", "Hello there.", *quick]
    assert main(sample) == 0
    said = capfd.readouterr()
    (row,) = [json.loads(line) for line in said.out.splitlines()]
    assert row["frames"] > 0 and (tmp_path / row["wav"]).is_file()
    assert "Traceback" not in said.err
    judge = ["evaluate", "--run", "run", "--json", "r.json", "pitch=false", "num_utterances=2"]
    assert main([*judge, *quick]) == 0
    (measured,) = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert len(measured["rows"]) == 2

    capfd.readouterr()
    assert main(["export", "--run", "run", "--out", "onnx"]) == 2
    refused = capfd.readouterr().err
    assert refused.count("\n") == 1 and "got model.kind=tacotron2" in refused
