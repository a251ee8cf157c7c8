"""A corpus beyond the size from which columns are kept, by the tool that measures ten million."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/scale_check.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_a_large_manifest_is_read_once_and_then_opens_in_little_memory(tmp_path: Path) -> None:
    words = [sys.executable, str(TOOL), "--utterances", "30000", "--folder", str(tmp_path)]
    words += ["--large", "20000"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first, *later = (json.loads(line) for line in done.stdout.splitlines())
    assert first["utterances"] == 30_000 and len(later) == 3
    for row in later:
        assert row["utterances"] == 30_000
        assert row["seconds"] < first["seconds"] / 3
        assert row["own_mib"] < first["imports_mib"] + 300
