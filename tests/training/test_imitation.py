"""The expert: where each self-made prefix stands in the recording, and what should follow it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profforce.config import TrainConfig
from profforce.data.batch import collate
from profforce.data.corpus import Corpus
from profforce.models.losses import mel_loss, stop_loss
from profforce.nn.noise import PrenetNoise
from profforce.training.imitation import Expert, attention_loss, imitation_loss, next_frames
from profforce.training.passes import teacher_forced
from profforce.training.state import TrainState

CPU = torch.device("cpu")


def recording(frames: int, seed: int = 0) -> torch.Tensor:
    """Frames that are like their neighbours and unlike others, as far as those of speech are."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(80, generator=drawn) + 0.3 * torch.randn(frames, 80, generator=drawn).cumsum(
        0
    )


def spoken(real: torch.Tensor, seed: int = 1000) -> torch.Tensor:
    """As a model says it: never quite as recorded."""
    return real + 0.3 * torch.randn(real.shape, generator=torch.Generator().manual_seed(seed))


def following(made: torch.Tensor, real: torch.Tensor, factor: int = 1) -> list[int]:
    return next_frames(made, real, factor).tolist()


@given(frames=st.integers(1, 40), factor=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_after_a_perfect_prefix_comes_the_next_frame(frames: int, factor: int, seed: int) -> None:
    real = recording(frames, seed)
    assert following(real, real, factor) == list(range(0, frames, factor))


def test_at_another_speed_it_goes_on_from_where_it_is() -> None:
    real = recording(12)
    slow = spoken(real.repeat_interleave(2, 0))
    assert following(slow, real) == [0, *[k for k in range(1, 12) for _ in "ab"], 11]
    fast = following(spoken(real[::2]), real)
    assert all(
        abs(step - wanted) <= 1 for step, wanted in zip(fast, range(-1, 12, 2), strict=False)
    )


def test_before_what_was_skipped_it_is_still_to_come_and_after_it_no_more() -> None:
    real = recording(30)
    made = spoken(torch.cat([real[:10], real[18:]]))
    steps = following(made, real)
    assert steps[:11] == list(range(11)) and steps[-6:] == list(range(24, 30))


@given(seed=st.integers(0, 999), before=st.booleans(), more=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_skip_is_not_approved_of_since_the_recording_goes_on_alike(
    seed: int, before: bool, more: bool
) -> None:
    """Of "ba bi ba bo" it says "ba bo": after "ba" comes "bi", though it ends like the other."""
    ba, bi, bo, other = (recording(12, 4 * seed + k) for k in range(4))
    head = [other] if before else []
    real = torch.cat([*head, ba, bi, *[other] * more, ba, bo])
    steps = following(spoken(torch.cat([*head, ba, bo]), seed), real)
    end = 12 * (1 + before)
    assert all(abs(steps[k] - k) <= 2 for k in range(end + 1))


def test_whoever_babbles_on_the_spot_is_told_the_same_again() -> None:
    real = recording(20)
    made = spoken(torch.cat([real[:9], real[8:9].repeat(5, 1), real[9:]]))
    assert following(made, real) == [*range(9), *[9] * 6, *range(10, 20)]


@given(said=st.floats(0.3, 0.9), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_whoever_stopped_early_is_told_to_speak_on_from_there(said: float, seed: int) -> None:
    real = recording(100, seed)
    steps = following(spoken(real, seed + 1)[: round(100 * said)], real)
    assert all(abs(step - place) <= 4 for place, step in enumerate(steps))
    assert following(spoken(real, seed + 1), real)[-1] >= 96


@given(seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_a_pause_in_the_middle_is_not_the_end(seed: int) -> None:
    pause = recording(8, 3 * seed)
    first, second = recording(30, 3 * seed + 1), recording(30, 3 * seed + 2)
    real = torch.cat([first, pause, second, pause])
    steps = following(spoken(real[:38], seed), real)
    assert all(abs(step - place) <= 4 for place, step in enumerate(steps))


def test_whoever_speaks_on_after_the_end_is_told_to_stop() -> None:
    real = recording(60)
    made = spoken(torch.cat([real, recording(40, 5)]))
    assert set(following(made, real)[60:]) == {59}


@given(seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_who_says_a_word_badly_is_not_told_to_say_it_again(seed: int) -> None:
    real = recording(60, 2 * seed)
    made = spoken(real, seed)
    made[20:40] = (made[20:40] + spoken(recording(20, 2 * seed + 1), seed)) / 2
    steps = following(made, real)
    assert all(abs(step - place) <= 6 for place, step in enumerate(steps))


def test_what_was_said_twice_is_not_gone_back_for() -> None:
    real = recording(30)
    steps = following(spoken(torch.cat([real[:15], real[10:]])), real)
    assert steps[:13] == list(range(13)) and steps[-14:] == list(range(16, 30))
    assert min(steps[15:]) >= 11


def test_numbers_that_are_none_are_laid_somewhere() -> None:
    real = recording(8)
    made = real.clone()
    made[3] = float("nan")
    assert following(made, real)[5:] == [5, 6, 7]


def test_on_frames_as_recorded_it_is_teacher_forcing(config: TrainConfig, corpus: Corpus) -> None:
    for factor in (1, 3, 4):
        state = TrainState(
            replace(config, model=replace(config.model, reduction_factor=factor)), corpus, CPU
        )
        state.set_mel_statistics()
        batch = collate([corpus.train[i] for i in range(4)])
        out = teacher_forced(state.model, batch, PrenetNoise(0, batch.indices), refine=False)
        steps = torch.arange(out.hidden.shape[1]).expand(len(batch), -1) * factor
        terms = imitation_loss(
            state.model,
            out,
            batch.mel_lengths,
            Expert(batch, steps),
            stop_weight=0.5,
            stop_positive_weight=4.0,
        )
        mel = mel_loss(out.mel_before, batch.mel, batch.mel_lengths, state.model.mel_std)
        stop = stop_loss(out.stop_logits, batch.mel_lengths, 4.0)
        torch.testing.assert_close(terms["mel"], mel)
        torch.testing.assert_close(terms["stop"], stop)
        torch.testing.assert_close(terms["total"], mel + 0.5 * stop)


def test_who_stopped_early_should_not_have_and_who_did_not_should(
    config: TrainConfig, corpus: Corpus
) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    factor = config.model.reduction_factor
    real = collate([corpus.train[i] for i in range(2)])
    length = int(real.mel_lengths[0])
    early, late = real.mel[0, : length - 3 * factor], real.mel[0, :length]
    late = torch.cat([late, late[-1:].repeat(2 * factor, 1)])
    for made, stops in ((early, 0), (late, 2 * factor + 1)):
        batch = replace(
            collate([corpus.train[0]]), mel=made[None], mel_lengths=torch.tensor([len(made)])
        )
        scaled = [x / state.model.mel_std for x in (made, real.mel[0, :length])]
        expert = Expert(collate([corpus.train[0]]), next_frames(*scaled, factor)[None])
        out = teacher_forced(state.model, batch, PrenetNoise(0, batch.indices), refine=False)
        wanted = []
        for sign in (-50.0, 50.0):
            sure = replace(out, stop_logits=torch.full_like(out.stop_logits, sign))
            terms = imitation_loss(
                state.model, sure, batch.mel_lengths, expert, stop_weight=1, stop_positive_weight=1
            )
            wanted.append(float(terms["stop"]) / 50 * len(made))
        assert wanted[0] == pytest.approx(stops, abs=factor + 0.01)
        assert wanted[0] + wanted[1] == pytest.approx(len(made))
        assert (wanted[0] > 0) == (stops > 0)


def test_padding_changes_neither_term(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.model.eval()
    factor = config.model.reduction_factor
    items = sorted((corpus.train[i] for i in range(3)), key=lambda item: -len(item.mel))

    def terms(rows: list[int]) -> tuple[float, float]:
        batch = collate([items[row] for row in rows])
        noise = PrenetNoise(0, torch.tensor(rows))
        out = teacher_forced(state.model, batch, noise, refine=False)
        steps = (torch.arange(out.hidden.shape[1]) * factor).clamp(max=7).expand(len(rows), -1)
        expert = Expert(batch, steps)
        lengths = batch.mel_lengths
        mels = imitation_loss(
            state.model, out, lengths, expert, stop_weight=1, stop_positive_weight=3
        )
        attention = attention_loss(out, out, lengths, expert, factor)
        return float(mels["total"].detach()), float(attention.detach())

    frames = [len(item.mel) for item in items]
    steps = [-(-n // factor) for n in frames]
    alone = [terms([row]) for row in range(3)]
    together = terms([0, 1, 2])
    for term, sizes in ((0, frames), (1, steps)):
        mean = sum(n * x[term] for n, x in zip(sizes, alone, strict=True)) / sum(sizes)
        assert together[term] == pytest.approx(mean, rel=1e-4)


def test_attention_is_cheapest_where_the_recording_s_own_was(
    config: TrainConfig, corpus: Corpus
) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    batch = collate([corpus.train[i] for i in range(3)])
    factor = config.model.reduction_factor
    out = teacher_forced(state.model, batch, PrenetNoise(0, batch.indices), refine=False)
    steps = torch.arange(out.hidden.shape[1]).expand(len(batch), -1) * factor
    sharp = torch.zeros_like(out.alignments)
    sharp[..., 0] = 1
    known = replace(out, alignments=sharp)
    expert = Expert(batch, steps)
    same = attention_loss(known, known, batch.mel_lengths, expert, factor)
    other = attention_loss(
        replace(out, alignments=sharp.roll(1, -1)), known, batch.mel_lengths, expert, factor
    )
    assert float(same) == pytest.approx(0, abs=1e-4) and float(other) > 5
    wanted = attention_loss(out, known, batch.mel_lengths, expert, factor)
    (gradient,) = torch.autograd.grad(wanted, state.model.decoder_in.weight)
    assert gradient.abs().sum() > 0


def test_a_pool_made_to_imitate_tells_it_for_its_own_samples(
    config: TrainConfig, corpus: Corpus
) -> None:
    config = replace(config, method=replace(config.method, imitation_weight=1.0))
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.pool.refresh(state.mirror, 2, CPU)
    pool = state.pool.draw(3, CPU)
    assert pool.expert is not None
    assert pool.expert.real.ids == pool.batch.ids
    for row in range(3):
        made = pool.batch.mel[row, : pool.batch.mel_lengths[row]]
        real = pool.expert.real.mel[row, : pool.expert.real.mel_lengths[row]]
        mean, std = state.model.mel_mean, state.model.mel_std
        steps = next_frames((made - mean) / std, (real - mean) / std, config.model.reduction_factor)
        assert torch.equal(pool.expert.next_frames[row, : len(steps)], steps)


def test_a_pool_from_before_imitation_is_made_anew(config: TrainConfig, corpus: Corpus) -> None:
    before = TrainState(
        replace(config, method=replace(config.method, imitation_weight=0.0)), corpus, CPU
    )
    before.set_mel_statistics()
    before.pool.advance(before.mirror, 2, 2, CPU)
    now = TrainState(
        replace(config, method=replace(config.method, imitation_weight=1.0)), corpus, CPU
    )
    now.set_mel_statistics()
    now.pool.load_state_dict(before.pool.state_dict())
    assert now.pool.advance(now.mirror, 3, 2, CPU)
    assert now.pool.draw(2, CPU).expert is not None
    assert not now.pool.advance(now.mirror, 4, 2, CPU)
