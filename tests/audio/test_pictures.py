import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from profforce.audio.pictures import Behaviour, draw_comparison, draw_utterance, save_figure
from profforce.config import MelConfig
from profforce.errors import UserError

MEL = MelConfig()
SYMBOLS = [*"hi $x$ ðɜː_^", "<eos>"]


def behaviour(num_frames: int, factor: int = 2, num_symbols: int = len(SYMBOLS)) -> Behaviour:
    num_steps = -(-num_frames // factor)
    return Behaviour(
        "free-running",
        torch.randn(num_frames, 80),
        torch.rand(num_steps, num_symbols),
        torch.rand(num_frames),
    )


@pytest.mark.parametrize("num_frames", [0, 1, 7, 300])
def test_draws_any_length_without_a_warning(tmp_path: Path, num_frames: int) -> None:
    shown = behaviour(num_frames)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw_utterance(
            shown.mel,
            shown.alignment,
            shown.stop_probability,
            symbols=SYMBOLS,
            title="It costs $4, or $5_ \\frac?",
            mel_config=MEL,
            reduction_factor=2,
        )
        save_figure(figure, tmp_path / "new" / "a.png")
    assert imread(tmp_path / "new" / "a.png").std() > 0.01
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.png"]


def test_time_axes_of_mel_alignment_and_stop_agree() -> None:
    shown = behaviour(301, factor=3)
    figure = draw_utterance(
        shown.mel,
        shown.alignment,
        shown.stop_probability,
        symbols=SYMBOLS,
        title="",
        mel_config=MEL,
        reduction_factor=3,
    )
    mel, alignment, stop = figure.axes
    seconds = 301 * 256 / 22050
    assert mel.images[0].get_extent()[1] == pytest.approx(seconds)
    assert alignment.images[0].get_extent()[1] == pytest.approx(303 * 256 / 22050)
    assert stop.get_xlim()[1] == pytest.approx(seconds)
    assert [t.get_text() for t in alignment.get_yticklabels()][2:4] == ["_", "$"]
    assert np.asarray(mel.images[0].get_array()).shape == (80, 301)


def test_a_comparison_uses_one_scale_for_both() -> None:
    short, long = behaviour(50), behaviour(90, num_symbols=len(SYMBOLS))
    figure = draw_comparison(
        short, long, symbols=SYMBOLS, title="both", mel_config=MEL, reduction_factor=2
    )
    assert len(figure.axes) == 6
    left, right = figure.axes[0], figure.axes[1]
    assert left.images[0].get_clim() == right.images[0].get_clim()
    assert figure.axes[4].get_xlim() == figure.axes[5].get_xlim()


def test_long_texts_are_counted_instead_of_named() -> None:
    figure = draw_comparison(
        behaviour(40, num_symbols=400),
        behaviour(40, num_symbols=400),
        symbols=["a"] * 400,
        title="",
        mel_config=MEL,
        reduction_factor=2,
    )
    assert "a" not in [t.get_text() for t in figure.axes[2].get_yticklabels()]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    shown = behaviour(4)
    figure = draw_comparison(
        shown, shown, symbols=SYMBOLS, title="", mel_config=MEL, reduction_factor=2
    )
    with pytest.raises(UserError, match=r"a\.nonsense"):
        save_figure(figure, tmp_path / "a.nonsense")
    assert not list(tmp_path.iterdir())


def test_pyplot_is_never_imported() -> None:
    code = "import sys, profforce.audio.pictures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
