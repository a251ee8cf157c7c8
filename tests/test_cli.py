"""The command line as a person meets it: exit codes, one-line errors, folders, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profforce.app import main
from profforce.config import TrainConfig

ROOT = Path(__file__).parent.parent
SMALL = ["data=synthetic", "data.num_utterances=16", "data.valid_fraction=0.3"]
QUICK = [
    *["model=tiny", *SMALL, "trainer.batch_size=4", "trainer.warmup_steps=2"],
    *["method.start_step=1", "freerun.pool_size=4", "trainer.log_every=1"],
]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake_train(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainConfig, Path, bool]]:
    """Replace training; gives what it was called with."""
    calls: list[tuple[TrainConfig, Path, bool]] = []

    def train(cfg: TrainConfig, run_dir: Path, *, resume: bool = False, **others: object) -> float:
        calls.append((cfg, run_dir, resume))
        return 1.0

    monkeypatch.setattr("profforce.training.run.train", train)
    return calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train", "--foo"], "no such option: --foo"),
        (["train", "trainer.stps=3"], "did you mean 'trainer.steps'"),
        (["train", "steps=3"], "did you mean 'trainer.steps'"),
        (["train", "model=liner"], "did you mean 'linear'"),
        (["train", "modl=linear"], "did you mean 'model'"),
        (["train", "trainer.steps=abc"], "trainer.steps: got 'abc', expected a whole number"),
        (["train", "trainer.steps=0"], "trainer.steps must be >= 1, got 0"),
        (["train", "method.name=gan"], "[teacher_forcing, professor_forcing, through_time]"),
        (["train", "model.dropout=2"], "model.dropout must be >= 0 and < 1, got 2"),
        (["train", "model.width=30", "model.num_heads=4"], "multiple of model.num_heads"),
        (["train", "+trainer.foo=1"], "foo"),
        (["train", "trainer.lr=1,2"], "-m to sweep"),
        (["train", "trainer.lr=[1"], "cannot parse override"),
        (["train", "data=custom"], "the folder with metadata.csv or manifest.jsonl"),
        (["train", "experiment=demmo"], "did you mean 'demo'"),
        (["train", "--config-dir", "nowhere"], "no such folder"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["train", "data=synthetic"], "run: profforce data prepare"),
        (["train", "data=custom", "data.root=nowhere"], "no corpus here"),
        (["data", "prepare", "demmo"], "did you mean 'demo'"),
        (["data", "prepare", "custom"], "data.root"),
        (["sample", "--out", "o", "--text", "x"], "missing option '--run'"),
        (["sample", "--run", "r", "--out", "o"], "--text TEXT or --input FILE; got neither"),
        (["sample", "--run", "r", "--out", "o", "--text", "x", "--input", "-"], "got both"),
        (["train", "data.root=${foo}"], "foo"),
        (["train", "trainer.lr=${trainer.lr}"], "trainer.lr"),
        (["train", "seed=-1"], "seed must be >= 0, got -1"),
        (["train", "trainer.lr=inf"], "finite, got inf"),
        (["train", "mel.fmax_hz=nan"], "mel.fmax_hz must be"),
        (["train", "mel.sample_rate=10000000"], "mel.sample_rate must be >= 1 and <= 384000"),
        (["train", "data.max_seconds=nan"], "data.max_seconds must be"),
        (["sample", "--run", "r", "--out", "o", "--text", "x", "seed=${foo}"], "foo"),
        (["train", "model.decoder_layers=1"], "set model.guided_layers=1"),
        (["train", "foo"], "cannot parse override 'foo', expected KEY=VALUE\n"),
        (["sample", "--run", "r", "--out", "o", "--text", "x"], "no such run folder"),
        (["sample", "--run", "r", "--out", "o", "--input", "none.txt"], "cannot be read"),
        (["sample", "--run", "r", "--out", "o", "--text", "x", "batch_size=0"], "batch_size must"),
        (["sample", "--run", "r", "--out", "o", "--text", "x", "vocoder=wavenet"], "griffin_lim"),
    ],
)
def test_every_usage_error_is_one_line_and_exit_2(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    assert main(words) == 2
    out = capfd.readouterr()
    assert said.lower() in out.err.lower()
    assert out.err.startswith("error: ") and out.err.count("\n") == 1
    assert out.out == ""
    if "corpus" not in out.err:  # found by the task itself, which has its run folder by then
        assert list(in_tmp.iterdir()) == []


def test_odd_input_files(capfd: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    (in_tmp / "latin.txt").write_bytes(b"caf\xe9\n")
    (in_tmp / "empty.txt").write_bytes(b"\xef\xbb\xbf \n\n")
    words = ["sample", "--run", "r", "--out", "o", "--input"]
    assert main([*words, "latin.txt"]) == 2
    assert "not UTF-8; got byte 0xe9 at 3" in capfd.readouterr().err
    assert main([*words, "empty.txt"]) == 2
    assert "holds no text" in capfd.readouterr().err


def test_help_version_and_settings_need_nothing_heavy() -> None:
    code = (
        "import sys, profforce.app as a; assert a.main(['--help']) == 0; a.main(['--version']);"
        "assert a.main(['train', '--help']) == 0;"
        "print([m for m in ('torch', 'hydra', 'omegaconf', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "model=linear|softmax|tacotron2|tiny" in done.stdout


def test_cfg_job_prints_the_settings_and_makes_nothing(
    capfd: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    for word in ("experiment=demo", "+experiment=demo"):
        assert main(["train", "--cfg", "job", word, "trainer.steps=7", "model=softmax"]) == 0
        shown = capfd.readouterr().out
        assert "steps: 7" in shown and "attention: softmax" in shown and "width: 128" in shown
    assert not (in_tmp / "runs").exists()


def test_a_run_gets_its_folder_and_its_settings(
    fake_train: list[tuple[TrainConfig, Path, bool]],
    in_tmp: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "seed=5", "hydra.run.dir=a b/r"]) == 0
    cfg, run_dir, resume = fake_train[0]
    assert (cfg.seed, resume) == (5, False)
    assert run_dir.resolve() == (in_tmp / "a b/r").resolve()
    assert (run_dir / ".hydra/config.yaml").is_file()
    assert capfd.readouterr().out.strip().endswith("r")


def test_resume_keeps_settings_and_folder(
    fake_train: list[tuple[TrainConfig, Path, bool]], in_tmp: Path
) -> None:
    assert main(["train", "seed=5", "model=softmax", "hydra.run.dir=r"]) == 0
    (in_tmp / "r/checkpoints").mkdir()
    assert main(["train", "--resume", "r", "trainer.steps=9"]) == 0
    cfg, run_dir, resume = fake_train[1]
    assert (cfg.seed, cfg.model.attention, cfg.trainer.steps, resume) == (5, "softmax", 9, True)
    assert run_dir.resolve() == (in_tmp / "r").resolve()
    assert main(["train", "--resume", "r", "model=linear"]) == 2


def test_a_sweep_runs_every_point(
    fake_train: list[tuple[TrainConfig, Path, bool]], in_tmp: Path
) -> None:
    assert main(["train", "-m", "trainer.lr=0.1,0.2", "seed=1,2", "hydra.sweep.dir=s"]) == 0
    assert [(c.trainer.lr, c.seed) for c, _, _ in fake_train] == [
        (0.1, 1),
        (0.1, 2),
        (0.2, 1),
        (0.2, 2),
    ]
    assert {p.name for p in (in_tmp / "s").iterdir()} >= {"0", "1", "2", "3"}


def test_a_fault_is_exit_1_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(*_: object, **__: object) -> float:
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr("profforce.training.run.train", train)
    assert main(["train", "hydra.run.dir=r"]) == 1
    err = capfd.readouterr().err
    assert "ZeroDivisionError: deep inside" in err and "Traceback" in err


def test_doctor(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capfd.readouterr().out)}
    assert found["torch"]["ok"] and found["folder"]["ok"]
    assert main(["doctor"]) == 0


@pytest.mark.slow
def test_end_to_end(in_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "synthetic", *SMALL[1:], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["num_utterances"] == 16
    assert main(["train", *QUICK, "trainer.steps=3", "hydra.run.dir=r"]) == 0
    assert main(["train", *QUICK, "trainer.steps=3", "hydra.run.dir=r"]) == 2
    assert main(["train", "--resume", "r", "trainer.steps=5"]) == 0
    steps = [json.loads(row)["step"] for row in (in_tmp / "r/metrics.jsonl").open()]
    assert steps == [1, 2, 3, 3, 4, 5, 5]
    assert "error" not in (in_tmp / "r/train.log").read_text().lower()
    capfd.readouterr()
    (in_tmp / "texts.txt").write_text("\ufeffba be.\n\nbi bo\n", encoding="utf-8")
    assert main(["sample", "--run", "r", "--input", "texts.txt", "--out", "out"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["ba be.", "bi bo"]
    assert all(Path(row[kind]).is_file() for row in rows for kind in ("wav", "mel", "picture"))
    assert main(["sample", "--run", "r", "--text", "\U0001f980", "--out", "out"]) == 2
    assert "\U0001f980" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to send")
def test_sigterm_saves_and_exits_143(in_tmp: Path) -> None:
    assert main(["data", "prepare", "synthetic", *SMALL[1:]]) == 0
    words = ["train", *QUICK, "trainer.steps=100000", "hydra.run.dir=r"]
    running = subprocess.Popen(
        [sys.executable, "-m", "profforce", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    metrics = in_tmp / "r/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 143
    last = json.loads(metrics.read_text().splitlines()[-1])["step"]
    saved = [int(p.name.removeprefix("step-")) for p in (in_tmp / "r/checkpoints").iterdir()]
    assert max(saved) >= last
