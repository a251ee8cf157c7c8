import pytest
import torch

from profforce.data.batch import Item, collate


def item(index: int, symbols: int, frames: int) -> Item:
    return Item(
        index=index,
        id=f"u{index}",
        text=f"text {index}",
        symbols=torch.arange(1, symbols + 1),
        mel=torch.full((frames, 4), -2.0 - index),
        speaker=index % 2,
    )


def test_collate_pads_with_zeros() -> None:
    items = [item(3, 2, 5), item(1, 4, 3)]
    batch = collate(items)
    assert len(batch) == 2 and batch.ids == ["u3", "u1"] and batch.texts == ["text 3", "text 1"]
    assert batch.indices.tolist() == [3, 1] and batch.speakers.tolist() == [1, 1]
    assert batch.symbol_lengths.tolist() == [2, 4] and batch.mel_lengths.tolist() == [5, 3]
    assert batch.symbols.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert batch.mel.shape == (2, 5, 4) and batch.mel.dtype == torch.float32
    for row, source in enumerate(items):
        frames = len(source.mel)
        assert torch.equal(batch.mel[row, :frames], source.mel)
        assert not batch.mel[row, frames:].any()
    integers = (batch.indices, batch.symbols, batch.symbol_lengths, batch.mel_lengths)
    assert all(tensor.dtype == torch.int64 for tensor in (*integers, batch.speakers))


def test_to_moves_every_tensor() -> None:
    moved = collate([item(0, 2, 3)]).to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 6 and all(tensor.is_meta for tensor in tensors)
    assert moved.ids == ["u0"]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        collate([])
