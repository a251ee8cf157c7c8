"""Files of text appear whole; what is no file is written to."""

from pathlib import Path

import pytest

from profforce.data.files import write_text
from profforce.errors import UserError


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="no /dev/null here")
def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to("/dev/null")
    write_text(link, "words\n")
    assert link.is_symlink() and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_in_its_place_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=r"\.: cannot write the file"):
        write_text(Path(), "words\n")
    with pytest.raises(UserError, match=r"out: cannot write the file \(Is a directory\)"):
        write_text(tmp_path / "out", "words\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
