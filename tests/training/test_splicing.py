"""Texts that nobody recorded: where words begin, how two utterances meet, who meets whom."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profforce.bridge import compose
from profforce.config import FreerunConfig, TrainConfig
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.nn.noise import PrenetNoise
from profforce.training.distributed import ALONE
from profforce.training.exploring import Explorer
from profforce.training.pool import SamplePool
from profforce.training.recital import Recital, Samples
from profforce.training.splicing import (
    Splice,
    Words,
    join,
    partners,
    splice,
    spliced,
    words_at,
    words_of,
)
from profforce.training.state import TrainState

CPU = torch.device("cpu")
GAP, END, LETTER = 2, 1, 7
NONE = Words(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


@pytest.fixture
def state(config: TrainConfig, corpus: Corpus) -> TrainState:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    return state


def said(words: list[int]) -> torch.Tensor:
    """Symbols of words of so many letters, a space between, end-of-sentence last."""
    numbers: list[int] = []
    for count in words:
        numbers += [GAP] * bool(numbers) + [LETTER] * count
    return torch.tensor([*numbers, END])


def diagonal(steps: list[int], leak: float = 0.0) -> torch.Tensor:
    """Attention ``[U, S]`` that stays so many steps on each symbol, but for a share ``leak``."""
    rows = torch.eye(len(steps)).repeat_interleave(torch.tensor(steps), 0)
    return (1 - leak) * rows + leak / len(steps)


@given(
    words=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    data=st.data(),
    factor=st.integers(1, 4),
    leak=st.floats(0, 0.02),
)
def test_a_word_begins_where_attention_comes_to_it(
    words: list[int], data: Any, factor: int, leak: float
) -> None:
    symbols = said(words)
    steps = data.draw(st.lists(st.integers(1, 5), min_size=len(symbols), max_size=len(symbols)))
    found = words_at(diagonal(steps, leak), symbols, GAP, factor)
    begins = list(accumulate(words, lambda at, count: at + count + 1))[:-1]
    places = [at + 1 for at in begins]
    assert found.symbols.tolist() == places
    assert found.frames.tolist() == [sum(steps[:place]) * factor for place in places]


def test_attention_that_wanders_tells_of_no_word() -> None:
    symbols = said([3, 3, 3])
    even = torch.full((30, len(symbols)), 1 / len(symbols))
    assert len(words_at(even, symbols, GAP, 2).symbols) == 0
    assert len(words_at(diagonal([3] * len(symbols)), symbols, GAP, 2).symbols) == 2


@pytest.mark.parametrize(
    "symbols",
    [
        [GAP, LETTER, END],
        [GAP, GAP, LETTER, END],
        [LETTER, GAP, END],
        [LETTER, GAP, GAP, LETTER, END],
    ],
)
def test_a_gap_at_an_end_or_another_gap_begins_no_word(symbols: list[int]) -> None:
    found = words_at(diagonal([2] * len(symbols)), torch.tensor(symbols), GAP, 1).symbols.tolist()
    assert found == ([3] if len(symbols) == 5 else [])


def test_two_utterances_meet_between_words_within_the_longest() -> None:
    begins = Words(torch.tensor([3, 6]), torch.tensor([10, 20]))
    ends = Words(torch.tensor([4, 8]), torch.tensor([15, 40]))
    seen = {
        splice((5, begins), (9, ends, 60), 55, torch.Generator().manual_seed(k)) for k in range(60)
    }
    assert seen == {
        Splice(5, 3, 10, 9, 4, 15),
        Splice(5, 3, 10, 9, 8, 40),
        Splice(5, 6, 20, 9, 8, 40),
    }  # 20 + 60 - 15 frames are too many
    source = torch.Generator()
    assert splice((5, NONE), (9, ends, 60), 99, source) is None
    assert splice((5, begins), (9, NONE, 60), 99, source) is None
    assert splice((5, begins), (9, ends, 60), 29, source) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms())
def test_everyone_meets_another_of_the_same_speaker_once(speakers: list[int], random: Any) -> None:
    order = list(range(len(speakers)))
    random.shuffle(order)
    found = partners(speakers, order)
    for row, other in enumerate(found):
        if other is None:
            assert speakers.count(speakers[row]) == 1
        else:
            assert other != row and speakers[other] == speakers[row]
    met = [other for other in found if other is not None]
    assert len(set(met)) == len(met)


def test_a_splice_has_symbols_and_frames_of_both(corpus: Corpus) -> None:
    one, other = corpus.train[0], corpus.train[1]
    item = spliced(corpus.train, Splice(0, 3, 7, 1, 2, 5), GAP)
    assert item.symbols.tolist() == [*one.symbols[:3].tolist(), *other.symbols[2:].tolist()]
    assert torch.equal(item.mel, torch.cat([one.mel[:7], other.mel[5:]]))
    assert (item.index, item.speaker) == (0, one.speaker)
    assert one.id in item.id and other.text in item.text
    mel = torch.zeros(4, item.mel.shape[1])
    made = spliced(corpus.train, Splice(0, 3, 7, 1, 2, 5), GAP, mel)
    assert made.mel is mel and torch.equal(made.symbols, item.symbols)


def test_joined_whole_there_is_a_space_between(corpus: Corpus) -> None:
    frames = corpus.train.num_frames
    one, other = sorted(range(len(frames)), key=lambda k: int(frames[k]))[:2]
    both = int(frames[[one, other]].sum())
    assert join(corpus.train, one, other, both - 1) is None
    found = join(corpus.train, one, other, both)
    assert found is not None
    item = spliced(corpus.train, found, GAP)
    first, second = (corpus.train[k] for k in (one, other))
    wanted = [*first.symbols[:-1].tolist(), GAP, *second.symbols.tolist()]
    assert item.symbols.tolist() == wanted
    assert torch.equal(item.mel, torch.cat([first.mel, second.mel]))


def watch_words(monkeypatch: pytest.MonkeyPatch, gap: int) -> None:
    """Words at every gap, as if attention were diagonal: the small model's is not."""

    def found(model: Any, items: Any, asked: int, noise: Any, device: Any) -> list[Words]:
        assert asked == gap and len(noise.utterances) == len(items)
        words = []
        for item in items:
            starts = (item.symbols[:-2] == gap).nonzero()[:, 0] + 1
            words.append(Words(starts, starts * len(item.mel) // len(item.symbols)))
        return words

    monkeypatch.setattr("profforce.training.recital.words_of", found)


def pool_of(state: TrainState, **changes: object) -> SamplePool:
    settings = FreerunConfig(every=5, pool_size=8, **changes)  # type: ignore[arg-type]
    gap = state.corpus.tokenizer.gap
    return SamplePool(Recital(settings, state.corpus.train, seed=1, gap=gap, imitates=True))


@pytest.mark.parametrize(("cut", "whole"), [(0, 0), (0.5, 0), (1, 0), (0, 1), (0.25, 0.75)])
def test_a_share_of_the_pool_is_spliced_with_an_expert_of_its_own(
    state: TrainState, monkeypatch: pytest.MonkeyPatch, cut: float, whole: float
) -> None:
    share = cut + whole
    gap = state.corpus.tokenizer.gap
    assert gap is not None and state.corpus.tokenizer.symbols[gap] == " "
    watch_words(monkeypatch, gap)
    with torch.no_grad():
        state.model.stop_out.bias.fill_(-50)
    pool = pool_of(state, splice=cut, join=whole)
    pool.refresh(state.mirror, 4, CPU)
    samples, dataset = pool.samples, state.corpus.train
    count = sum(found is not None for found in samples.splices)
    kinds = {found.from_symbol == 0 for found in samples.splices if found is not None}
    assert kinds == {joined for joined, some in ((False, cut), (True, whole)) if some}
    assert count <= round(8 * share) and (count > 0) == (share > 0)
    assert pool.summary(4)["pool/spliced_fraction"] == count / 8
    assert pool.summary(4)["pool/length_ratio"] == pytest.approx(1.5, abs=0.03)
    drawn = pool.draw(8, CPU)
    assert drawn.expert is not None
    for place, row in enumerate(pool_rows(pool)):
        found = samples.splices[row] if samples.splices else None
        real = dataset[samples.indices[row]] if found is None else spliced(dataset, found, gap)
        length = int(drawn.expert.real.mel_lengths[place])
        assert torch.equal(drawn.expert.real.mel[place, :length], real.mel)
        assert int(drawn.batch.symbol_lengths[place]) == len(real.symbols)
        assert torch.equal(drawn.batch.symbols[place, : len(real.symbols)], real.symbols)
        assert len(samples.mels[row]) == -(-len(real.mel) * 3 // 2)
        assert int(samples.next_frames[row].max()) < len(real.mel)
        assert len(real.mel) <= int(dataset.num_frames.max())


def pool_rows(pool: SamplePool) -> list[int]:
    """The rows that the first draw of eight took."""
    return [pool._row(draw) for draw in range(8)]


def test_splices_go_into_a_checkpoint_and_out(
    state: TrainState, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    gap = state.corpus.tokenizer.gap
    assert gap is not None
    watch_words(monkeypatch, gap)
    pool, twin = pool_of(state, splice=1.0), pool_of(state, splice=1.0)
    pool.refresh(state.mirror, 4, CPU)
    torch.save(pool.state_dict(), tmp_path / "pool.pt")
    twin.load_state_dict(torch.load(tmp_path / "pool.pt", weights_only=True))
    assert twin.samples.splices == pool.samples.splices and any(twin.samples.splices)
    ours, theirs = pool.draw(8, CPU), twin.draw(8, CPU)
    assert torch.equal(ours.batch.symbols, theirs.batch.symbols)
    before = pool.state_dict()
    samples = dict(before["samples"])  # type: ignore[call-overload]
    del samples["splices"]  # as older checkpoints are
    twin.load_state_dict({**before, "samples": samples})
    assert twin.samples.splices == []


class Half:
    """One of two processes, without the other."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2


def test_two_processes_splice_as_one_does(
    state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = state.corpus.tokenizer.gap
    assert gap is not None
    watch_words(monkeypatch, gap)
    config = FreerunConfig(every=5, pool_size=8, splice=0.5, join=0.5)

    def recital(team: Any) -> Recital:
        return Recital(config, state.corpus.train, 1, gap=gap, imitates=True, team=team)

    alone = recital(ALONE).part(state.mirror, 4, 4, CPU)
    parts = [recital(Half(rank)).part(state.mirror, 4, 4, CPU) for rank in range(2)]
    both = recital(Half(0))
    both.team.gathered = lambda what, part: parts  # type: ignore[method-assign, misc]
    whole: Samples = both.joined(parts[0])
    assert whole.splices == alone.splices and any(whole.splices)
    for ours, theirs in zip(whole.mels, alone.mels, strict=True):
        torch.testing.assert_close(ours, theirs)
    made = [sum(len(mel) > 0 for mel in part.mels) for part in parts]
    assert made == [4, 4]


def test_without_a_space_nothing_can_be_spliced(state: TrainState) -> None:
    with pytest.raises(UserError, match=r"freerun.splice=0.5 freerun.join=0:"):
        Recital(FreerunConfig(splice=0.5), state.corpus.train, seed=1, gap=None)
    with pytest.raises(UserError, match=r"freerun.splice=0 freerun.join=0.5:"):
        Recital(FreerunConfig(join=0.5), state.corpus.train, seed=1, gap=None)


def test_words_are_read_off_the_models_own_attention(
    state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = state.corpus.tokenizer.gap
    assert gap is not None
    items = [state.corpus.train[k] for k in range(20)]
    seen: list[tuple[int, int]] = []

    def look(alignment: torch.Tensor, symbols: torch.Tensor, *rest: Any) -> Words:
        torch.testing.assert_close(alignment.sum(1), torch.ones(len(alignment)))
        seen.append((len(alignment), len(symbols)))
        return NONE

    monkeypatch.setattr("profforce.training.splicing.words_at", look)
    state.model.train()
    state.model.segment_steps = 8
    random = torch.get_rng_state()
    found = words_of(state.model, items, gap, PrenetNoise(3, torch.arange(20)), CPU)
    factor = state.config.model.reduction_factor
    wanted = [(-(-len(item.mel) // factor), len(item.symbols)) for item in items]
    assert sorted(seen) == sorted(wanted) and len(found) == 20
    assert state.model.training and state.model.segment_steps == 8
    assert torch.equal(torch.get_rng_state(), random)  # it may run beside the training


def test_weights_that_are_disturbed_speak_otherwise_and_the_model_stays(
    state: TrainState,
) -> None:
    model, explorer = state.model, Explorer(0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = explorer.twin_of(model, 5)
    first = {name: value.clone() for name, value in twin.named_parameters()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and weight.abs().max() > 0:
            factors = (first[name] / weight).detach()[weight.abs() > 1e-6]
            assert 0.05 < float(factors.std()) < 0.15, name
        elif weight.dim() == 1:
            assert torch.equal(weight, first[name])
    assert explorer.twin_of(model, 6) is twin
    name = next(name for name, weight in first.items() if weight.dim() > 1)
    assert not torch.equal(dict(twin.named_parameters())[name], first[name])
    explorer.twin_of(model, 5)  # noise does not add up
    for name, weight in twin.named_parameters():
        assert torch.equal(weight, first[name])


def test_a_pool_is_disturbed_by_its_step(state: TrainState) -> None:
    plain, noisy, same = pool_of(state), pool_of(state, weight_noise=0.1), pool_of(state)
    for pool in (plain, noisy, same):
        pool.refresh(state.mirror, 4, CPU)
    assert torch.equal(plain.samples.mels[0], same.samples.mels[0])
    assert not torch.equal(plain.samples.mels[0][:4], noisy.samples.mels[0][:4])
    made = noisy.samples
    noisy.refresh(state.mirror, 9, CPU)
    noisy.refresh(state.mirror, 4, CPU)
    assert torch.equal(made.mels[0], noisy.samples.mels[0])


def test_no_utterance_meets_itself(state: TrainState, monkeypatch: pytest.MonkeyPatch) -> None:
    gap = state.corpus.tokenizer.gap
    assert gap is not None
    watch_words(monkeypatch, gap)
    config = FreerunConfig(pool_size=4 * len(state.corpus.train), splice=1.0)
    pool = SamplePool(Recital(config, state.corpus.train, seed=1, gap=gap))
    pool.refresh(state.mirror, 4, CPU)
    found = [splice for splice in pool.samples.splices if splice is not None]
    assert len(found) > len(state.corpus.train)
    assert all(splice.first != splice.second for splice in found)


def test_texts_of_one_word_are_left_alone_and_that_is_said_once(
    state: TrainState, caplog: pytest.LogCaptureFixture
) -> None:
    config = FreerunConfig(pool_size=4, splice=1.0)
    pool = SamplePool(Recital(config, state.corpus.train, seed=1, gap=999))
    pool.refresh(state.mirror, 4, CPU)
    pool.refresh(state.mirror, 9, CPU)
    assert pool.samples.splices == [None] * 4
    assert caplog.text.count("nothing is spliced") == 1


def test_shares_of_one_pool_are_not_more_than_the_whole() -> None:
    with pytest.raises(ValueError, match=r"add up to 1 at most, got 1\.1"):
        FreerunConfig(splice=0.5, join=0.6)
    assert FreerunConfig(splice=0.7, join=0.3).join == 0.3
    config = compose(TrainConfig, "train", ["freerun.join=0.5", "freerun.splice=${freerun.join}"])
    assert config.freerun.splice == 0.5


@pytest.mark.parametrize("name", ["splice", "join", "weight_noise"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_and_deviations_are_within_their_limits(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"freerun\.{name}"):
        replace(FreerunConfig(), **{name: value})
