"""Metrics against cases whose value is known."""

import math

import pytest
import torch

from profforce.models.metrics import (
    alignment_coverage,
    dtw_mel_distance,
    focus_rate,
    mean_alignment,
    mel_cepstral_distortion,
    warping_path,
)


def test_dtw_is_zero_for_equal_and_for_slower_speech() -> None:
    mel = torch.randn(20, 4)
    assert dtw_mel_distance(mel, mel) == 0
    assert dtw_mel_distance(mel.repeat_interleave(2, 0), mel) == 0


def test_dtw_of_a_constant_offset_is_the_offset_and_does_not_grow_with_length() -> None:
    for frames in (5, 50):
        mel = torch.zeros(frames, 4)
        assert dtw_mel_distance(mel + 0.5, mel) == pytest.approx(0.5)


def test_dtw_sees_a_skipped_and_a_repeated_part() -> None:
    torch.manual_seed(0)
    mel = torch.randn(40, 8).cumsum(0)
    skipped = torch.cat([mel[:10], mel[25:]])
    babble = torch.cat([mel, mel[:15]])
    assert dtw_mel_distance(skipped, mel) > 0.3
    assert dtw_mel_distance(babble, mel) > 0.3


def test_coverage_counts_attended_symbols() -> None:
    diagonal = torch.eye(10)
    assert alignment_coverage(diagonal) == 1
    stuck = torch.zeros(10, 10)
    stuck[:, 0] = 1
    assert alignment_coverage(stuck) == pytest.approx(0.2)  # the symbol and its neighbour
    assert alignment_coverage(torch.full((10, 10), 0.01)) == 0
    assert alignment_coverage(torch.zeros(0, 5)) == 0


@pytest.mark.parametrize("symbols", [2, 3, 5, 9, 20, 60])
def test_coverage_of_even_attention_is_nothing_and_of_a_diagonal_everything(symbols: int) -> None:
    even = torch.full((7, symbols), 1 / symbols)
    assert alignment_coverage(even) == 0
    assert alignment_coverage(torch.eye(symbols)) == 1


def test_the_clearest_head_is_shown() -> None:
    blurred, sharp = torch.full((6, 6), 1 / 6), torch.eye(6)
    assert torch.equal(mean_alignment(torch.stack([blurred, sharp])), sharp)
    assert focus_rate(sharp) == 1
    assert focus_rate(blurred) == pytest.approx(1 / 6)


@pytest.mark.parametrize("order", [1, 4, 13, 14])
def test_cepstral_distortion_of_one_cosine_is_known(order: int) -> None:
    wave = torch.cos(torch.pi * order * (torch.arange(80) + 0.5) / 80)
    mel = torch.randn(1, 80).expand(12, 80)
    known = 10 / math.log(10) * math.sqrt(2) * 0.3 / 2 if order <= 13 else 0.0
    assert mel_cepstral_distortion(mel + 0.3 * wave, mel) == pytest.approx(known, abs=1e-4)


def test_cepstral_distortion_hears_neither_loudness_nor_tempo() -> None:
    mel = torch.randn(20, 80)
    assert mel_cepstral_distortion(mel + 1.5, mel) == pytest.approx(0, abs=1e-4)
    assert mel_cepstral_distortion(mel.repeat_interleave(3, 0), mel) == pytest.approx(0, abs=1e-4)
    assert mel_cepstral_distortion(mel.flip(0), mel) > 1
    assert mel_cepstral_distortion(torch.full((3, 80), float("nan")), mel) == float("inf")


def test_the_warping_path_runs_from_first_to_last_frame() -> None:
    mel = torch.randn(9, 8)
    path = warping_path(mel.repeat_interleave(2, 0), mel)
    assert path.tolist() == [[i, i // 2] for i in range(18)]
