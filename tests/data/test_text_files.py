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


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("folder/file")
    write_text(link, "first\n")
    write_text(link, "words\n")
    assert link.is_symlink() and link.read_text(encoding="utf-8") == "words\n"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")
def test_an_output_that_goes_into_a_file_is_written_there(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        write_text(Path(f"/proc/self/fd/{out.fileno()}"), "words\n")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "words\n"


def test_a_folder_in_its_place_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=r"\.: cannot write the file"):
        write_text(Path(), "words\n")
    with pytest.raises(UserError, match=r"out: cannot write the file \(Is a directory\)"):
        write_text(tmp_path / "out", "words\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
