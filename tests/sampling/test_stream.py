"""Speech as it is made is the speech of the whole: frames, audio, ends and faults."""

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from profforce.audio.griffin_lim import GriffinLim
from profforce.audio.hifigan import HifiGan
from profforce.config import MelConfig, SampleConfig
from profforce.errors import UserError
from profforce.models import native
from profforce.sampling.run import fault_row
from profforce.sampling.stopping import StoppedBy, spoken_step
from profforce.sampling.stream import Chunk
from profforce.sampling.stream_piece import PieceStream
from profforce.sampling.stream_way import Follower
from profforce.sampling.synthesizer import Synthesizer
from tests.sampling.hifigan_files import write_hifigan
from tests.sampling.scripted import SPOILS, parts_of, scripted
from tests.sampling.utterances import good_plan, take_of

FAST = SampleConfig(device="cpu", griffin_lim_iterations=2, retries=0, attention_window=None)
LONG = "One two, three. Four five! Is it six? Seven eight nine ten eleven."


def joined(chunks: list[Chunk]) -> tuple[Any, Any]:
    """Audio and mel of all ``chunks``, which go on where the last one ended."""
    position = 0.0
    for chunk in chunks:
        assert chunk.start_s == pytest.approx(position)
        position += chunk.seconds
    return np.concatenate([c.audio for c in chunks]), np.concatenate([c.mel for c in chunks])


def with_hifigan(run: Path, small_hifigan: HifiGan, **changes: Any) -> Synthesizer:
    made = Synthesizer.from_run(run, replace(FAST, **changes))
    return Synthesizer(made.model, made._meta, made.config, small_hifigan)


@settings(deadline=None, max_examples=20, phases=[Phase.explicit, Phase.generate])
@given(
    text=st.sampled_from(
        ["a", "One two.", LONG, "The third text is longer, with a comma.\n\nYes."]
    ),
    threshold=st.sampled_from([0.02, 0.12, 0.2, 0.5, 0.999]),
    least=st.sampled_from([0.0, 0.025, 0.1]),
    tail=st.sampled_from([0, 3, 11]),
    limit=st.sampled_from([20, 200]),
    chunk_s=st.sampled_from([0.05, 0.5, 3.0]),
    rate=st.sampled_from([None, 6000]),
    by_modules=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_stream_is_the_whole(
    run: Path,
    small_hifigan: HifiGan,
    text: str,
    threshold: float,
    least: float,
    tail: int,
    limit: int,
    chunk_s: float,
    rate: int | None,
    by_modules: bool,
    seed: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("stopping", "stream_way"):  # speech ends by the stop head or at the limit
            patch.setattr(f"profforce.sampling.{module}.ARRIVED", 2.0)
        if by_modules:
            patch.setattr(native, "obstacle", lambda model: "it was asked for")
        voice = with_hifigan(
            run,
            small_hifigan,
            stop_threshold=threshold,
            min_seconds_per_symbol=least,
            max_seconds_per_symbol=0.15,
            tail_frames=tail,
            max_symbols_per_piece=limit,
            chunk_s=chunk_s,
            sample_rate=rate,
            seed=seed,
        )
        whole, chunks = voice.speak(text), list(voice.stream(text))
    audio, mel = joined(chunks)
    ends = [chunk.ended for chunk in chunks if chunk.ended is not None]
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].warnings == whole.warnings
    order = list(StoppedBy)
    assert max((e.stopped_by for e in ends), key=order.index) is whole.stopped_by
    found = [fault_row(f.later(e.start_s)) for e in ends for f in e.faults]
    assert found == [fault_row(fault) for fault in whole.faults]
    assert mel.shape == whole.mel.shape and audio.shape == whole.audio.shape
    if by_modules:
        np.testing.assert_allclose(mel, whole.mel, rtol=1e-5, atol=1e-5)
    else:
        assert np.array_equal(mel, whole.mel)
    np.testing.assert_allclose(audio, whole.audio, atol=1e-4)


@pytest.mark.parametrize("spoil", ["", *SPOILS])
def test_it_ends_and_is_judged_as_the_whole_is(spoil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "obstacle", lambda model: "its steps are scripted")
    taker, _, scripter = scripted(spoil, lambda *_: True, retries=0, attention_window=None)
    (part,) = parts_of(scripter, ["the words of a text that goes on for a little while now"])
    (whole,) = taker([part])
    stream, mels = PieceStream(taker, part), []
    for _ in range(1000):
        mels.append(stream.advance(3))
        if stream.done:
            break
    end, mel = stream.end(0.0), torch.cat(mels)
    if spoil == "wander":  # the whole waits for the stop head to the limit and finds another end
        assert end.stopped_by is whole.stopped_by is StoppedBy.end_of_speech
        return
    assert (end.stopped_by, end.num_frames) == (whole.stopped_by, len(whole.mel))
    assert [fault.kind for fault in end.faults] == [fault.kind for fault in whole.faults]
    torch.testing.assert_close(mel, whole.mel)
    assert end.stopped_by is (StoppedBy.end_of_speech if spoil == "deaf" else StoppedBy.stop)


def test_a_run_that_never_stops_ends_soon_after_its_speech(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "obstacle", lambda model: "its steps are scripted")
    taker, _, scripter = scripted("deaf", lambda *_: True)
    taker.config = replace(taker.config, max_seconds_per_symbol=2.0)
    (part,) = parts_of(scripter, ["the words of a text that goes on for a little while now"])
    stream, steps = PieceStream(taker, part), 0
    while not stream.done:
        stream.advance(2)
        steps += 2
    spoken = 2 * len(part.numbers)
    assert steps < spoken + stream.grace / taker.frames_a_step + 6


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_the_end_of_good_speech_is_known_as_it_comes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    take = take_of(good_plan(rng), rng)
    follower = Follower(min_step=0, min_on_way=0.6)
    last = spoken_step(take.alignment, min_step=0, min_on_way=0.6)
    for step, row in enumerate(take.alignment):
        follower.follow(row[None])
        if step < len(take.alignment) // 2:
            assert follower.spoken is None
    assert last is not None and follower.spoken is not None
    assert abs(follower.spoken - last) <= 2


def test_attention_that_goes_back_was_not_at_the_end() -> None:
    rows = torch.zeros(60, 20)
    rows[torch.arange(60), torch.tensor([*range(10), *[19] * 3, *range(10, 17), *[17] * 40])] = 1
    follower = Follower(min_step=0, min_on_way=0.6)
    follower.follow(rows[:13])
    assert follower.spoken is not None
    follower.follow(rows[13:])
    assert follower.spoken == 20  # the first step on one of the last three symbols


def test_faults_are_said_at_the_end_for_they_cannot_be_mended(run: Path) -> None:
    config = replace(FAST, stop_threshold=0.999, retries=2, max_symbols_per_piece=20)
    *_, last = Synthesizer.from_run(run, config).stream(LONG)
    assert last.last and last.ended is not None and last.ended.faults
    assert "faults, not tried again: what is streamed is out" in last.warnings[-1]
    assert last.warnings[-1].startswith("pieces 1, 2, ")
    *_, last = Synthesizer.from_run(run, replace(config, retries=0, attention_window=None)).stream(
        LONG
    )
    assert last.warnings == []


def test_what_needs_the_whole_is_refused_at_once(run: Path) -> None:
    voice = Synthesizer.from_run(run, replace(FAST, loudness_lufs=-20.0))
    with pytest.raises(UserError, match=r"loudness_lufs: .*known at its end only"):
        voice.stream("Hello.")
    with pytest.raises(UserError, match="nothing to say"):
        voice.with_settings(loudness_lufs=None).stream("...")


def test_first_audio_comes_before_the_text_is_half_spoken(run: Path) -> None:
    voice = Synthesizer.from_run(run, replace(FAST, stop_threshold=0.999, chunk_s=0.3))
    steps: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        advance = PieceStream.advance

        def counted(self: PieceStream, num_steps: int) -> torch.Tensor:
            steps.append(num_steps)
            return advance(self, num_steps)

        patch.setattr(PieceStream, "advance", counted)
        chunks = voice.stream("One two three four five six seven eight.")
        next(chunks)
        assert 2 * sum(steps) <= 40
        list(chunks)
    assert max(steps) == round(0.3 * 8000 / 128 / 2)


def live_bytes() -> int:
    """Memory of Python, numpy and every tensor that Python can reach."""
    gc.collect()
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in gc.get_objects()
        if type(one) in (torch.Tensor, torch.nn.Parameter)  # what proxies and fakes are not
    }
    return tracemalloc.get_traced_memory()[0] + sum(storages.values())


def test_memory_does_not_grow_with_the_number_of_sentences(run: Path) -> None:
    voice = Synthesizer.from_run(run, replace(FAST, stop_threshold=0.999, griffin_lim_iterations=1))
    text = " ".join(f"This is sentence number {n} of many, said in turn." for n in range(60))
    voice = voice.with_settings(max_symbols_per_piece=60, max_seconds_per_symbol=0.03)
    tracemalloc.start()
    try:
        after = [live_bytes() for c in voice.stream(text) if c.ended and c.piece in (4, 9, 29, 59)]
    finally:
        tracemalloc.stop()
    whole = 4 * 2 * voice.mel.sample_rate  # bytes of audio that one sentence has
    assert len(after) == 4 and max(after) < min(after) + 2 * whole


@pytest.fixture(scope="session")
def small_hifigan(tmp_path_factory: pytest.TempPathFactory) -> HifiGan:
    mel = MelConfig(
        sample_rate=8000, n_fft=256, hop_length=128, win_length=256, fmax_hz=4000.0, num_mels=20
    )
    return HifiGan(mel, checkpoint=write_hifigan(tmp_path_factory.mktemp("hifigan"), mel))


def test_griffin_lim_streams_as_many_samples(run: Path) -> None:
    voice = Synthesizer.from_run(run, FAST)
    assert isinstance(voice.vocoder, GriffinLim)
    whole, (audio, mel) = voice.speak(LONG), joined(list(voice.stream(LONG)))
    assert audio.shape == whole.audio.shape and np.array_equal(mel, whole.mel)
