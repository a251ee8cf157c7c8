"""The corrected copy: what it keeps, what it mends, what it never touches."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import DataConfig, MelConfig, TextConfig
from profforce.data.check.catalogue import KINDS
from profforce.data.check.findings import Findings
from profforce.data.check.kinds import Severity
from profforce.data.check.mend import MendReport, mend
from profforce.data.check.run import check_corpus, write_report
from profforce.errors import UserError
from tests.data.check_cases import CASES, VALID_FRACTION, Case, Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    root = tmp_path / "corpus"
    root.mkdir()
    return Made(root)


def findings_of(root: Path, *, with_audio: bool = False) -> Findings:
    data = DataConfig(root=str(root), valid_fraction=VALID_FRACTION)
    return check_corpus(data, TextConfig(), MelConfig(), with_audio=with_audio).findings


def mended(root: Path, target: Path) -> MendReport:
    return mend(findings_of(root), target)


def test_what_can_be_mended_is_and_said(made: Made, tmp_path: Path) -> None:
    lines = made.lines[:4]
    lines[1] = "u1|sentence\u200b \x07 two.\u00a0 |sentence  two."
    lines = [line if line.count("|") == 2 else f"{line}|x y" for line in lines]
    made.raw(("\ufeff" + "\r\n".join([*lines[:3], "", lines[2], lines[3], "../u8|a|b"])).encode())
    before = (made.root / "metadata.csv").read_bytes()
    out = tmp_path / "new" / "metadata.csv"
    report = mended(made.root, out)
    assert out.read_bytes() == (
        b"u0|sentence one.|x y\nu1|sentence two.|sentence two.\nu2|sentence three.|x y\n"
        b"u3|sentence four.|x y\n../u8|a|b\n"  # no audio was looked at
    )
    assert (made.root / "metadata.csv").read_bytes() == before
    assert report.num_lines == 5
    assert report.done == {
        "byte-order marks removed": 1,
        "line ends converted": 4,
        "line ends added": 1,
        "blank lines left out": 1,
        "lines with errors left out": 1,
        "texts cleaned of invisible characters and spaces": 1,
    }


def test_json_lines_keep_what_is_not_text(made: Made, tmp_path: Path) -> None:
    rows = [
        {"audio": "wavs/u0.wav", "text": "a\u200bb", "id": "x\u200b", "duration": 1.25},
        {"audio": "wavs/u1.wav", "text": "caf\u00e9", "normalized_text": None},
    ]
    made.json_lines([json.dumps(row) for row in rows])
    mended(made.root, tmp_path / "out.jsonl")
    kept = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert kept == [{**rows[0], "text": "ab"}, rows[1]]


LINES = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.text(max_size=20).map(lambda text: f"u1|{text}".encode("utf-8", "surrogatepass")),
        st.integers(0, 12).map(lambda k: f"u{k}|sentence {k}".encode()),
    ),
    min_size=1,
    max_size=8,
)


@given(LINES, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_mended_manifest_has_nothing_left_to_mend(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bytes, mark: bool
) -> None:
    root = tmp_path_factory.mktemp("corpus")
    (root / "metadata.csv").write_bytes((b"\xef\xbb\xbf" if mark else b"") + end.join(lines))
    second = root / "second"
    try:
        mended(root, second / "metadata.csv")
    except UserError as error:
        assert "no line is left" in str(error)
        return
    again = findings_of(second)
    assert [kind.code for kind in again.found() if kind.mendable] == []
    broken = [kind for kind in again.found() if kind.severity is Severity.error]
    assert {kind.code for kind in broken} <= {"split.no_train", "split.no_valid"}
    mended(second, root / "third")
    assert (root / "third").read_bytes() == (second / "metadata.csv").read_bytes()


ERRORS = [
    case
    for case in CASES
    if KINDS[case.code].severity is Severity.error and "metadata.csv" in case.where
]


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case.name)
def test_lines_with_errors_are_left_out_wherever_they_were_found(
    made: Made, tmp_path: Path, case: Case
) -> None:
    case.spoil(made)
    findings = findings_of(made.root, with_audio=True)
    second = tmp_path / "second"
    second.mkdir()
    (second / "wavs").symlink_to(made.root / "wavs")
    try:
        mend(findings, second / "metadata.csv")
    except UserError as error:
        assert "no line is left" in str(error)
        return
    again = findings_of(second, with_audio=True)
    left = {kind.code for kind in again.found() if kind.severity is Severity.error}
    assert left <= {"split.no_train", "split.no_valid"}


def test_nothing_is_overwritten(made: Made, tmp_path: Path) -> None:
    made.write()
    manifest = made.root / "metadata.csv"
    before = manifest.read_bytes()
    (tmp_path / "link").symlink_to(manifest)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for target in (manifest, tmp_path / "link", tmp_path / "dangling", tmp_path):
        with pytest.raises(UserError, match="exists already"):
            mended(made.root, target)
    with pytest.raises(UserError, match="cannot be written"):
        mended(made.root, manifest / "inside")
    with pytest.raises(UserError, match="a second manifest of the corpus"):
        mended(made.root, made.root / "manifest.jsonl")
    report = check_corpus(DataConfig(root=str(made.root)), TextConfig(), MelConfig())
    with pytest.raises(UserError, match="the manifest itself"):
        write_report(report, tmp_path / "link")
    assert manifest.read_bytes() == before
    assert list(made.root.glob("*.part")) == []
