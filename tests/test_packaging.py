"""What is packaged is what is on disk."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import profforce

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
YAML = sorted(p for p in (ROOT / "conf").rglob("*.yaml") if "hydra" not in p.parts)


def test_the_version_has_one_source() -> None:
    assert version("profforce") == profforce.__version__
    assert "version" in PROJECT["project"]["dynamic"]
    assert f"version: {profforce.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_every_package_on_disk_is_listed() -> None:
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "profforce").rglob("__init__.py")
    }
    mapped = set(PROJECT["tool"]["setuptools"]["package-dir"])
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders | mapped
    assert (ROOT / "profforce/py.typed").exists()


def test_constraints_pin_every_direct_dependency() -> None:
    pinned = {
        line.split("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    for wish in PROJECT["project"]["dependencies"]:
        name = wish.split(">")[0].split("=")[0].lower()
        assert name in pinned, name


def test_there_are_few_config_files() -> None:
    assert len(YAML) <= 17


@pytest.mark.parametrize("path", YAML, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_config_file_composes(path: Path) -> None:
    from profforce.bridge import compose
    from profforce.config import SampleConfig, TrainConfig

    if path.parent.name == "conf":
        schema = {"train": TrainConfig, "sample": SampleConfig}[path.stem]
        compose(schema, path.stem, [])
        return
    extra = ["data.root=x"] if path.stem == "custom" else []
    compose(TrainConfig, "train", [f"{path.parent.name}={path.stem}", *extra])
