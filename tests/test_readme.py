"""The README's commands and example are run, so that they cannot rot."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"```console\n(.*?)```", README, re.S)
EXAMPLE = re.search(r"```python\n(.*?)```", README, re.S)


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


def test_the_example_runs() -> None:
    assert EXAMPLE is not None
    exec(compile(EXAMPLE[1], "README.md", "exec"), {})


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", README, re.M))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_every_link_to_a_file_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_setting_that_is_named_exists() -> None:
    from profforce.config import SampleConfig, TrainConfig

    train, sample = TrainConfig(), SampleConfig()
    sections = "|".join(name for name in vars(train) if name not in ("seed", "device"))
    for section, key in re.findall(rf"\b({sections})\.([a-z_]+)(?==|`)", README):
        assert hasattr(getattr(train, section), key), f"{section}.{key}"
    assert hasattr(sample, "checkpoint") and hasattr(sample, "vocoder")
