"""What is packaged is what is on disk."""

import re
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import profforce
from profforce import doctor

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
    project = PROJECT["project"]
    developed_with = ("demo", "asterisk", "hifigan", "judges", "speaker", "onnx", "dev")
    extras = [w for name in developed_with for w in project["optional-dependencies"][name]]
    wishes = [*project["dependencies"], *extras]
    names = {re.split(r"[<>=!~\[; ]", wish)[0].lower() for wish in wishes}
    assert names - pinned == set()


def test_the_doctor_looks_for_every_extra() -> None:
    assert {*doctor.EXTRAS, "dev"} == set(PROJECT["project"]["optional-dependencies"])


def test_no_requirement_names_a_host() -> None:
    for name in ("constraints.txt", "pyproject.toml", "Makefile", ".pre-commit-config.yaml"):
        text = (ROOT / name).read_text()
        assert "://" not in text and "index-url" not in text, name


def test_the_installed_package_finds_its_settings_and_texts() -> None:
    conf, texts = files("profforce.conf"), files("profforce.texts")
    for path in YAML:
        assert conf.joinpath(*path.relative_to(ROOT / "conf").parts).is_file(), path
    for path in (ROOT / "data/texts").glob("*.txt"):
        assert texts.joinpath(path.name).read_text(encoding="utf-8").strip(), path


def test_the_sentences_to_listen_to_were_never_trained_on() -> None:
    lines = {
        name: (ROOT / f"data/texts/{name}.txt").read_text(encoding="utf-8").splitlines()
        for name in ("demo", "demo_unseen", "demo_listen")
    }
    assert len(lines["demo_listen"]) == 5
    assert set(lines["demo_listen"]) <= set(lines["demo_unseen"])
    assert not set(lines["demo_listen"]) & set(lines["demo"])


def test_there_are_few_config_files() -> None:
    assert len(YAML) <= 20


@pytest.mark.parametrize("path", YAML, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_config_file_composes(path: Path) -> None:
    from profforce.bridge import SCHEMAS, compose
    from profforce.config import TrainConfig

    if path.parent.name == "conf":
        compose(SCHEMAS[path.stem], path.stem, [])
        return
    extra = ["data.root=x"] if path.stem == "custom" else []
    compose(TrainConfig, "train", [f"{path.parent.name}={path.stem}", *extra])
