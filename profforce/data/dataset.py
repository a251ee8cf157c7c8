"""Utterances of one side of a corpus. T mel frames, M mel channels, S symbols."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from profforce.data.batch import Item
from profforce.data.columns import Array, Stored
from profforce.data.features import Features, chunks_of
from profforce.data.manifest import Utterance

MIN_STD = 1e-3


class MelDataset(Stored, torch.utils.data.Dataset[Item]):
    """Symbols and cached mels; picklable, so that data workers can be spawned."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        symbols: Sequence[Tensor],
        features: Features,
        *,
        speakers: Array | None = None,
        num_symbols: Array | None = None,
    ) -> None:
        """Sequences that may be larger than memory; ``speakers`` are numbers, 0 when not given.

        ``num_symbols`` are the lengths of ``symbols``, if they are known.
        """
        self.utterances = utterances
        self.symbols = symbols
        self.features = features
        self.num_frames: npt.NDArray[np.int64] = features.num_frames
        """int64 [utterances], mel frames; the most there may be where silence is trimmed later."""
        lengths = [len(row) for row in symbols] if num_symbols is None else num_symbols
        self.num_symbols: npt.NDArray[np.int64] = np.asarray(lengths, dtype=np.int64)
        """int64 [utterances], end-of-sentence included."""
        self._speakers = np.zeros(len(utterances), np.int32) if speakers is None else speakers

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitem__(self, position: int) -> Item:
        """Utterance number ``position``; its mel is a copy that may be changed."""
        return self.item(position, torch.from_numpy(np.array(self.features[position])))

    def item(self, position: int, mel: Tensor) -> Item:
        """Utterance number ``position`` with ``mel [T, M]`` for its recording's."""
        utterance = self.utterances[position]
        return Item(
            index=position,
            id=utterance.id,
            text=utterance.spoken,
            symbols=self.symbols[position],
            mel=mel,
            speaker=self.speaker(position),
        )

    def speaker(self, position: int) -> int:
        """Number of the speaker of an utterance."""
        return int(self._speakers[position])

    def chunks(self, least: int) -> list[int]:
        """First positions of what is read best together, at least ``least`` utterances each."""
        return chunks_of(self.features.groups, least)

    def mel_statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over frames, float32 [M] each; deviations are >= 1e-3.

        Of a large corpus some thousand utterances, evenly spread, are read.
        """
        step = max(1, -(-len(self) // self.features.most_read))
        count, total, squares = 0, 0.0, 0.0
        for position in range(0, len(self), step):
            mel = self.features[position].astype(np.float64)
            count += len(mel)
            total = total + mel.sum(axis=0)
            squares = squares + np.square(mel).sum(axis=0)
        mean = np.asarray(total / count)
        std = np.sqrt(np.maximum(squares / count - mean**2, MIN_STD**2))
        return torch.from_numpy(mean).float(), torch.from_numpy(std).float()
