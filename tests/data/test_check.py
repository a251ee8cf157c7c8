"""Every kind of defect is found where it is, under its code, and nothing is where nothing is."""

import re
from pathlib import Path

import pytest

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.check.catalogue import KINDS
from profforce.data.check.kinds import Severity
from profforce.data.check.run import CheckReport, check_corpus
from profforce.data.corpus import load_corpus
from profforce.data.prepare import prepare
from profforce.errors import UserError
from tests.data.check_cases import CASES, VALID_FRACTION, Case, Made

UNTESTED = {"manifest.unreadable", "audio.unreadable"}
"""They need a user whom the system refuses something: see below."""
REFUSED_AS = {"line.duplicate": "id.duplicate", "manifest.mixed_encodings": "line.not_utf8"}
"""Training looks at less than the check and names these by the other code."""


def config(root: Path) -> DataConfig:
    return DataConfig(root=str(root), valid_fraction=VALID_FRACTION)


def check(root: Path, *, with_audio: bool = True) -> CheckReport:
    return check_corpus(config(root), TextConfig(), MelConfig(), with_audio=with_audio)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    root = tmp_path / "corpus"
    root.mkdir()
    return Made(root)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_defect_is_found_at_its_place_and_nothing_else_is(made: Made, case: Case) -> None:
    case.spoil(made)
    report = check(made.root)
    places = [place.where for place in report.findings.places(case.code)]
    assert any(where.endswith(case.where) for where in places), places
    assert set(report.findings.counts) == {case.code, *case.beside}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_training_refuses_exactly_what_is_called_an_error(made: Made, case: Case) -> None:
    case.spoil(made)
    report = check(made.root)
    errors = [kind for kind in report.findings.found() if kind.severity is Severity.error]
    assert report.is_usable == (not errors)
    if not errors:
        load_corpus(config(made.root), TextConfig(), MelConfig())
        return
    with pytest.raises(UserError) as refusal:
        load_corpus(config(made.root), TextConfig(), MelConfig())
    message = str(refusal.value)
    codes = [REFUSED_AS.get(kind.code, kind.code) for kind in errors]
    named = any(f"[{code}]" in message for code in codes)
    assert named or any(kind.what in message for kind in errors)
    assert "\n" not in message


def test_every_kind_has_a_case() -> None:
    assert {case.code for case in CASES} == set(KINDS) - UNTESTED
    assert len(KINDS) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_clean_corpus_has_nothing(made: Made) -> None:
    made.write()
    report = check(made.root)
    assert report.findings.found() == [] and report.is_usable
    assert report.num_utterances == 9
    assert report.hours == pytest.approx(9 * 1.2 / 3600, rel=0.05)


def test_a_prepared_corpus_has_nothing(tmp_path: Path) -> None:
    data = DataConfig(
        kind=DataKind.synthetic,
        root=str(tmp_path),
        num_utterances=24,
        valid_fraction=VALID_FRACTION,
    )
    prepare(data, TextConfig(), MelConfig())
    report = check_corpus(data, TextConfig(), MelConfig())
    assert report.findings.found() == [] and report.num_utterances == 24


def test_every_kind_is_described_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data_check.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([a-z]+\.[a-z0-9_]+)`( \(mended\))? \| (.*) \| (.*) \| (.*) \|$", page, re.M
    )
    described = {code: (bool(mended), *cells) for code, mended, *cells in rows}
    assert described == {
        kind.code: (
            kind.mendable,
            *(cell.replace("|", r"\|") for cell in (kind.what, kind.expected, kind.remedy)),
        )
        for kind in KINDS.values()
    }
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"{len(KINDS)} kinds of defects" in readme
