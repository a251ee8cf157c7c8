"""The README's commands and example are run, so that they cannot rot."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profforce.config import ModelConfig, SampleConfig
from profforce.groups import config_groups
from profforce.nn import attention

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"```console\n(.*?)```", README, re.S)
EXAMPLES = re.findall(r"<!-- tested -->\n```python\n(.*?)```", README, re.S)


@pytest.mark.slow
def test_every_command_of_the_readme_runs_in_order(tmp_path: Path) -> None:
    assert COMMANDS is not None
    lines = COMMANDS[1].strip().splitlines()
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "profforce"
        done = subprocess.run(
            [sys.executable, "-m", "profforce", *words[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert len(list((tmp_path / "out").glob("0001-ba-be-bi.*"))) == 3
    assert (tmp_path / "runs/try/checkpoints/step-8").is_dir()


def test_every_example_is_tested() -> None:
    assert len(EXAMPLES) == README.count("```python") == 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SELF_ATTENTION", dict(attention._SELF_ATTENTION))
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})


def test_the_self_attention_of_the_readme_has_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SELF_ATTENTION", dict(attention._SELF_ATTENTION))
    for example in EXAMPLES:
        if "register_self_attention" in example:
            exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    layer = attention.build_self_attention(ModelConfig(attention="running_mean", width=8))
    x = torch.randn(2, 5, 8)
    state = layer.init_state(2, 5, x)
    for t in range(5):
        y, state = layer.step(x[:, t], state, t)
        torch.testing.assert_close(y, layer(x, torch.tensor([5, 5]))[:, t])


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", README, re.M))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_settings_of_sample_are_named() -> None:
    sample = SampleConfig()
    for key in ("checkpoint", "vocoder", "max_seconds_per_symbol", "stop_threshold", "batch_size"):
        assert f"`{key}" in README and hasattr(sample, key), key


def test_the_groups_that_are_named_are_all_there_are() -> None:
    for group, choices in config_groups().items():
        if group == "hydra":
            continue
        named = [sorted(row.split("|")) for row in re.findall(rf"`{group}=([a-z0-9_|]+)`", README)]
        assert sorted(choices) in named, group
