"""Utterances and padded batches. B batch, S symbols, T mel frames, M mel channels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Item:
    """One utterance."""

    index: int
    """Position in its dataset."""
    id: str
    text: str
    symbols: Tensor
    """int64 [S], the last being end-of-sentence."""
    mel: Tensor
    """float32 [T, M], natural-log amplitude."""
    speaker: int


@dataclass(frozen=True)
class Batch:
    """Utterances padded with zeros at their ends."""

    indices: Tensor
    """int64 [B], positions in the dataset."""
    ids: list[str]
    texts: list[str]
    symbols: Tensor
    """int64 [B, S]."""
    symbol_lengths: Tensor
    """int64 [B]."""
    mel: Tensor
    """float32 [B, T, M], natural-log amplitude; zero beyond the lengths."""
    mel_lengths: Tensor
    """int64 [B], frames."""
    speakers: Tensor
    """int64 [B]."""

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with its tensors on ``device``."""
        move = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return Batch(ids=self.ids, texts=self.texts, **move)

    def rows(self, rows: Tensor) -> "Batch":
        """The utterances at ``rows [B']`` int64, with no more padding than they need."""
        symbol_lengths, mel_lengths = self.symbol_lengths[rows], self.mel_lengths[rows]
        return Batch(
            indices=self.indices[rows],
            ids=[self.ids[row] for row in rows.tolist()],
            texts=[self.texts[row] for row in rows.tolist()],
            symbols=self.symbols[rows, : int(symbol_lengths.max())],
            symbol_lengths=symbol_lengths,
            mel=self.mel[rows, : int(mel_lengths.max())],
            mel_lengths=mel_lengths,
            speakers=self.speakers[rows],
        )


@dataclass(frozen=True)
class TextBatch:
    """Texts alone, padded with zeros at their ends."""

    symbols: Tensor
    """int64 [B, S]."""
    symbol_lengths: Tensor
    """int64 [B]."""
    speakers: Tensor
    """int64 [B]."""


def collate(items: Sequence[Item]) -> Batch:
    """Pad ``items`` (at least one) with zeros to one batch."""
    if not items:
        raise ValueError("a batch needs at least one item")
    return Batch(
        indices=torch.tensor([item.index for item in items]),
        ids=[item.id for item in items],
        texts=[item.text for item in items],
        symbols=pad_sequence([item.symbols for item in items], batch_first=True),
        symbol_lengths=torch.tensor([len(item.symbols) for item in items]),
        mel=pad_sequence([item.mel for item in items], batch_first=True),
        mel_lengths=torch.tensor([len(item.mel) for item in items]),
        speakers=torch.tensor([item.speaker for item in items]),
    )


def collate_texts(items: Sequence[Item]) -> TextBatch:
    """Pad the texts of ``items`` (at least one) with zeros to one batch."""
    return TextBatch(
        symbols=pad_sequence([item.symbols for item in items], batch_first=True),
        symbol_lengths=torch.tensor([len(item.symbols) for item in items]),
        speakers=torch.tensor([item.speaker for item in items]),
    )
