"""The environment report, where something is missing too."""

import importlib.metadata
import json
import tempfile
from pathlib import Path

import pytest

from profforce.app import main
from profforce.doctor import examine


def test_a_missing_package_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "safetensors":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr("profforce.doctor.version", version)
    assert main(["doctor", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["safetensors"]["ok"] is False
    assert rows["torch"]["ok"] is True
    assert main(["doctor"]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_a_checkout_that_is_not_installed_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("profforce.doctor.version", version)
    assert examine()[0].name == "profforce"


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    folder = next(finding for finding in examine() if finding.name == "folder")
    assert folder.ok is False
    assert "Permission denied" in folder.value
    assert str(Path.cwd()) in folder.value


def test_what_is_optional_and_absent_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    findings = {finding.name: finding for finding in examine()}
    assert findings["espeak-ng"].ok is None
    assert findings["extra hifigan"].ok is None
    assert "pip install 'profforce[hifigan]'" in findings["extra hifigan"].value
