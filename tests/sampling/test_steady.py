"""The same seed gives the same bits, whatever the batch, the order and the number of threads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from profforce.config import ModelConfig, SampleConfig
from profforce.models import native
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.nn.noise import PrenetNoise
from profforce.sampling.steady import MIN_ROWS, SteadyMirror, one_thread
from profforce.sampling.synthesizer import Synthesizer

CONFIG = SampleConfig(
    device="cpu",
    griffin_lim_iterations=3,
    pictures=False,
    max_symbols_per_piece=40,
    max_seconds_per_symbol=0.1,
    stop_threshold=0.25,
    retries=1,
)
TEXTS = [
    "I",
    "A text that is longer than one piece, and so spoken in two of them.",
    "Another one.",
    "4",
    "The third text is a long one, too.",
    "Yes! No?",
]


@pytest.fixture(autouse=True)
def same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def truth(run: Path) -> list[Tensor]:
    """Audio of each text, spoken alone in a batch of one."""
    return [next(spoken(run, [text], batch_size=1)) for text in TEXTS]


def spoken(run: Path, texts: Sequence[str], **changes: int) -> Iterator[Tensor]:
    synthesizer = Synthesizer.from_run(run, replace(CONFIG, **changes))
    return (one.audio for one in synthesizer.synthesize(texts))


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    order=st.lists(st.sampled_from(range(len(TEXTS))), min_size=1, max_size=6),
    batch_size=st.sampled_from([1, 2, 3, 32]),
)
def test_neither_batch_nor_order_changes_a_bit(
    run: Path, truth: list[Tensor], order: list[int], batch_size: int
) -> None:
    audios = list(spoken(run, [TEXTS[i] for i in order], batch_size=batch_size))
    for number, audio in zip(order, audios, strict=True):
        assert torch.equal(audio, truth[number])


@pytest.mark.parametrize("num_threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(
    run: Path, truth: list[Tensor], num_threads: int
) -> None:
    for audio, same in zip(spoken(run, TEXTS, num_threads=num_threads), truth, strict=True):
        assert torch.equal(audio, same)
    assert torch.get_num_threads() == num_threads


def test_a_vocoder_has_one_thread_a_piece(run: Path) -> None:
    """Its products are large enough to be summed in as many parts as there are threads."""
    synthesizer = Synthesizer.from_run(run, replace(CONFIG, num_threads=4))
    vocoder, seen = synthesizer.vocoder, []

    def watched(mel: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return vocoder(mel)

    synthesizer.vocoder = watched  # type: ignore[assignment]
    assert len(list(synthesizer.synthesize(TEXTS))) == len(TEXTS)
    assert seen == [1] * 7


@pytest.mark.parametrize("num_threads", [1, 2])
def test_nor_does_the_batch_of_a_model_without_an_engine(
    run: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    monkeypatch.setattr("profforce.models.native.obstacle", lambda model: "no compiler")
    together = list(spoken(run, TEXTS, num_threads=num_threads))
    for text, audio in zip(TEXTS, together, strict=True):
        assert torch.equal(next(spoken(run, [text], num_threads=1)), audio)


def test_another_seed_is_another_voice(run: Path, truth: list[Tensor]) -> None:
    other = list(spoken(run, TEXTS, seed=1))
    assert all(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(other, truth, strict=True)
    )


def model(attention: str) -> TransformerTTS:
    torch.manual_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "feedforward_width": 128}
    made = TransformerTTS(ModelConfig(attention=attention, width=64, **sizes), 40, 20)
    with torch.no_grad():
        made.stop_out.bias.fill_(-2.0)
    return made.eval()


def inputs(rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, PrenetNoise]:
    """Texts number ``rows`` of a list that is the same in every batch."""
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randint(1, 40, (12, 64), generator=generator)
    lengths = torch.randint(2, 60, (12,), generator=generator)
    chosen = torch.tensor(rows)
    return symbols[chosen], lengths[chosen], lengths[chosen], PrenetNoise(0, chosen)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("mirror_class", [SteadyMirror, Mirror], ids=["modules", "engine"])
def test_every_row_of_a_free_run_has_the_bits_it_has_alone(
    attention: str, mirror_class: type[Mirror]
) -> None:
    mirror = mirror_class(model(attention))
    if mirror_class is Mirror and native.obstacle(mirror.model):
        pytest.skip("no C++ library here")

    def frames(rows: Sequence[int]) -> list[Tensor]:
        symbols, lengths, limits, noise = inputs(rows)
        run = mirror.free_run(symbols, lengths, limits, noise=noise)
        return [run.mel[i, :n] for i, n in enumerate(run.lengths.tolist())]

    alone = [frames([i])[0] for i in range(12)]
    assert len({len(one) for one in alone}) > 3
    for rows in (range(12), [5, 3], [7, 7, 1], [11, 0, 4, 2, 9, 8, 6, 10, 1]):
        for i, made in zip(rows, frames(rows), strict=True):
            assert torch.equal(made, alone[i])


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_a_steady_mirror_says_what_a_mirror_says(attention: str) -> None:
    plain = model(attention)
    symbols, lengths, limits, noise = inputs(range(5))
    truth = Mirror(plain).free_run(symbols, lengths, limits, noise=noise)
    steady = SteadyMirror(plain).free_run(symbols, lengths, limits, noise=noise)
    assert torch.equal(steady.lengths, truth.lengths)
    torch.testing.assert_close(steady.mel, truth.mel, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(steady.alignments, truth.alignments, rtol=1e-4, atol=1e-4)


def test_the_view_shares_its_parameters() -> None:
    plain = model("linear")
    mirror = SteadyMirror(plain)
    assert type(plain) is TransformerTTS
    assert {p.data_ptr() for p in mirror.model.parameters()} == {
        p.data_ptr() for p in plain.parameters()
    }


@pytest.mark.parametrize(
    ("n", "k"), [(128, 128), (480, 128), (512, 256), (2048, 512), (512, 2048), (6, 64)]
)
def test_from_the_least_number_of_rows_on_a_product_adds_up_alike(n: int, k: int) -> None:
    """What the padding of small batches rests on; it is the library's doing, not a promise."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(70, k, generator=generator), torch.randn(n, k, generator=generator)
    least = torch.nn.functional.linear(x[:MIN_ROWS], w)
    for rows in (MIN_ROWS + 1, 19, 32, 64, 70):
        assert torch.equal(torch.nn.functional.linear(x[:rows], w)[:MIN_ROWS], least)
        shifted = torch.nn.functional.linear(x[:rows].roll(3, 0), w).roll(-3, 0)
        assert torch.equal(shifted[:MIN_ROWS], least)


def test_the_number_of_threads_comes_back() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        _ = 1 / 0
    assert torch.get_num_threads() == 2
