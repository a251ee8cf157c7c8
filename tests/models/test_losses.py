"""Losses against hand-made values; padding never counts."""

import torch

from profforce.models.losses import guided_attention_loss, mel_loss, stop_loss, stop_targets


def test_mel_loss_counts_valid_frames_in_units_of_the_deviation() -> None:
    target = torch.zeros(2, 3, 2)
    predicted = torch.full((2, 3, 2), 4.0)
    predicted[1, 1:] = 1e6
    value = mel_loss(predicted, target, torch.tensor([3, 1]), torch.tensor([2.0, 2.0]))
    assert float(value) == 2 + 4


def test_stop_targets_mark_the_last_frame() -> None:
    assert stop_targets(torch.tensor([1, 3]), 3).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_stop_loss_weights_the_last_frame_and_ignores_padding() -> None:
    logits = torch.zeros(1, 4)
    logits[0, 2:] = 50.0
    value = stop_loss(logits, torch.tensor([2]), 3.0)
    torch.testing.assert_close(value, torch.log(torch.tensor(2.0)) * (1 + 3) / 2)


def test_guided_attention_is_zero_on_the_diagonal_and_grows_off_it() -> None:
    eye = torch.eye(6)[None, None]
    lengths = torch.tensor([6])
    assert float(guided_attention_loss(eye, lengths, lengths, 0.4)) == 0
    near = guided_attention_loss(eye.roll(1, 2), lengths, lengths, 0.4)
    far = guided_attention_loss(eye.roll(3, 2), lengths, lengths, 0.4)
    assert 0 < float(near) < float(far)
    padded = torch.zeros(1, 1, 8, 9)
    padded[:, :, :6, :6] = eye.roll(3, 2)
    padded[:, :, 6:] = 7.0
    torch.testing.assert_close(guided_attention_loss(padded, lengths, lengths, 0.4), far)
