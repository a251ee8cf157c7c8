"""The gap meter."""

import torch

from profforce.config import FreerunConfig, TrainConfig
from profforce.data.corpus import Corpus
from profforce.training.gap import fixed_sentences, measure_gap
from profforce.training.state import TrainState

CPU = torch.device("cpu")


def test_fixed_sentences_are_the_same_and_spread_over_lengths(corpus: Corpus) -> None:
    first, again = (fixed_sentences(corpus.train, 5) for _ in range(2))
    assert torch.equal(first.indices, again.indices)
    lengths = first.mel_lengths.tolist()
    assert lengths == sorted(lengths) and len(set(first.indices.tolist())) == 5
    assert len(fixed_sentences(corpus.valid, 999)) == len(corpus.valid)


def test_a_reading_compares_both_passes_and_repeats(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    batch = fixed_sentences(corpus.train, 3)
    reading = measure_gap(state.model, batch, FreerunConfig())
    again = measure_gap(state.model, batch, FreerunConfig())
    assert reading.scalars == again.scalars
    assert state.model.training
    scalars = reading.scalars
    assert (
        scalars["gap/dtw_ratio"]
        == scalars["gap/free_running_dtw"] / scalars["gap/teacher_forced_dtw"]
    )
    errors = (reading.free_running.lengths - batch.mel_lengths).abs().float().mean()
    assert scalars["gap/stop_error_frames"] == float(errors)
