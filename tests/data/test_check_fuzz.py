"""Whatever bytes a manifest or a wav holds: no crash, and training agrees with the check."""

from pathlib import Path

import pytest

from tests.data.check_fuzz import Fuzz

SEEDS_A_TEST = 50


@pytest.mark.parametrize("block", range(6))
def test_damaged_files_are_judged_as_training_judges_them(tmp_path: Path, block: int) -> None:
    fuzz = Fuzz(tmp_path)
    for seed in range(block * SEEDS_A_TEST, (block + 1) * SEEDS_A_TEST):
        usable, refusal = fuzz.run(seed)
        assert usable == (not refusal), f"seed {seed}: {refusal or 'training accepts it'}"
        assert "\n" not in refusal
