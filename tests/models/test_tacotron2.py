"""Tacotron 2: one recurrence for both views, padding that changes nothing, attention by place."""

import copy
import io
import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import NUM_MELS, NUM_SYMBOLS, config, texts
from torch import Tensor, nn

from profforce.config import ModelConfig, ModelKind, Precision
from profforce.errors import UserError
from profforce.export.graphs import exportable
from profforce.models import mirror as mirrors
from profforce.models import native
from profforce.models.build import build_model
from profforce.models.free_run import workspace_bytes
from profforce.models.mirror import Mirror, resolve_precision
from profforce.models.segments import check_segments
from profforce.models.tacotron2 import RECOMPUTED_STEPS, Tacotron2
from profforce.models.tacotron2_decoder import lstm_cell
from profforce.models.through_time import check_through_time
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TeacherForced
from profforce.nn.attention import AttentionWindow
from profforce.nn.location_attention import Attended, LocationAttention
from profforce.nn.masks import length_mask
from profforce.nn.noise import PrenetNoise
from profforce.sampling.steady import SteadyMirror

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SIZES = {"attention_width": 10, "location_channels": 3, "location_kernel": 5}


def build(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object) -> Tacotron2:
    torch.manual_seed(seed)
    wanted = config(**{"kind": ModelKind.tacotron2, **SIZES, **changes})
    model = build_model(wanted, NUM_SYMBOLS, NUM_MELS).to(dtype).eval()
    assert isinstance(model, Tacotron2)
    with torch.no_grad():  # stronger than at the start, or attention is even and tests see nothing
        for part in (model.decoder.attention.energy, model.decoder.attention.location):
            part.weight.mul_(4)
    model.set_mel_statistics(torch.linspace(-6, -3, NUM_MELS), torch.linspace(1, 2, NUM_MELS))
    return model


def mels(batch: int, frames: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, NUM_MELS, dtype=dtype, generator=g) - 4


@settings(max_examples=24, deadline=None)
@given(
    reduction=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    decoder_layers=st.integers(1, 3),
    encoder_layers=st.integers(1, 2),
    speakers=st.sampled_from([0, 2]),
    seed=st.integers(0, 999),
)
def test_the_recurrent_form_equals_the_parallel_form_frame_by_frame(
    reduction: int,
    dtype: torch.dtype,
    decoder_layers: int,
    encoder_layers: int,
    speakers: int,
    seed: int,
) -> None:
    model = build(
        dtype,
        seed,
        reduction_factor=reduction,
        decoder_layers=decoder_layers,
        guided_layers=1,
        encoder_layers=encoder_layers,
        num_speakers=speakers,
    )
    symbols, symbol_lengths = texts(3, seed)
    mel, mel_lengths = mels(3, 19, dtype, seed), torch.tensor([19, 1, 10])
    noise, who = PrenetNoise(seed, torch.tensor([4, 9, 2])), torch.tensor([1, 0, 1])
    parallel = model(symbols, symbol_lengths, mel, mel_lengths, noise=noise, speakers=who)
    inputs, mirror = model.decoder_inputs(mel), Mirror(model)
    state = mirror.start(symbols, symbol_lengths, inputs.shape[1], noise=noise, speakers=who)
    rows = []
    for t in range(inputs.shape[1]):
        step, state = mirror.step(replace(state, frames=inputs[:, t]))
        rows.append(step)
    frames = torch.cat([row.frames for row in rows], 1)
    for i, length in enumerate(mel_lengths.tolist()):
        steps = -(-length // reduction)
        own = {
            "mel": model.denormalize(frames[i, :length]),
            "stop": torch.cat([row.stop_logits[i] for row in rows])[:length],
            "hidden": torch.stack([row.hidden[i] for row in rows])[:steps],
            "alignments": torch.stack([row.alignments[i] for row in rows], 1)[:, :steps],
        }
        truths = {
            "mel": parallel.mel_before[i, :length],
            "stop": parallel.stop_logits[i, :length],
            "hidden": parallel.hidden[i, :steps],
            "alignments": parallel.alignments[i, :, :steps],
        }
        for name, truth in truths.items():
            ours = own[name]
            assert ours.shape == truth.shape
            assert (ours - truth).abs().max() <= TOLERANCE[dtype] * (1 + truth.abs().max())


@settings(max_examples=12, deadline=None)
@given(reduction=st.sampled_from([1, 2, 4]), seed=st.integers(0, 999))
def test_teacher_forcing_on_a_free_run_repeats_the_free_run(reduction: int, seed: int) -> None:
    model = build(seed=seed, reduction_factor=reduction)
    symbols, symbol_lengths = texts(4, seed)
    noise, limit = PrenetNoise(seed, torch.arange(4)), torch.tensor([23, 7, 16, 1])
    run = Mirror(model).free_run(symbols, symbol_lengths, limit, noise=noise, stop_threshold=0.55)
    again = model(symbols, symbol_lengths, run.mel_before, run.lengths, noise=noise)
    for ours, truth in (
        (again.mel_before, run.mel_before),
        (again.mel, run.mel),
        (again.alignments, run.alignments),
    ):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    mask = length_mask(run.lengths, run.mel.shape[1])
    torch.testing.assert_close(again.stop_logits.sigmoid() * mask, run.stop_probability)
    assert (run.lengths <= limit).all() and (run.lengths >= 1).all()
    quick = Mirror(model).free_run(
        symbols,
        symbol_lengths,
        limit,
        noise=noise,
        stop_threshold=0.55,
        refine=False,
        alignments=False,
    )
    assert torch.equal(quick.mel, run.mel_before)
    assert quick.alignments.shape[1] == 0


@settings(max_examples=12, deadline=None)
@given(reduction=st.sampled_from([1, 2, 4]), seed=st.integers(0, 999))
def test_an_utterance_alone_equals_itself_in_a_batch_of_32(reduction: int, seed: int) -> None:
    model = build(seed=seed, reduction_factor=reduction)
    symbols, symbol_lengths = texts(32, seed)
    g = torch.Generator().manual_seed(seed)
    mel, mel_lengths = mels(32, 21, torch.float64, seed), torch.randint(1, 22, (32,), generator=g)
    identity = torch.randint(0, 2**32, (32,), generator=g)
    batch = model(symbols, symbol_lengths, mel, mel_lengths, noise=PrenetNoise(1, identity))
    limit = torch.full((32,), 24)
    free = Mirror(model).free_run(
        symbols, symbol_lengths, limit, noise=PrenetNoise(1, identity), stop_threshold=0.55
    )
    for i in (0, 13, 31):
        size, length = int(symbol_lengths[i]), int(mel_lengths[i])
        alone = (symbols[i : i + 1, :size], symbol_lengths[i : i + 1])
        noise = PrenetNoise(1, identity[i : i + 1])
        single = model(*alone, mel[i : i + 1, :length], mel_lengths[i : i + 1], noise=noise)
        steps = -(-length // reduction)
        torch.testing.assert_close(single.mel[0], batch.mel[i, :length])
        torch.testing.assert_close(single.hidden[0], batch.hidden[i, :steps])
        torch.testing.assert_close(single.alignments[0], batch.alignments[i, :, :steps, :size])
        assert batch.alignments[i, :, :, size:].abs().sum() == 0
        for padded in (
            batch.mel[i, length:],
            batch.mel_before[i, length:],
            batch.stop_logits[i, length:],
            batch.hidden[i, steps:],
            batch.alignments[i, :, steps:],
        ):
            assert padded.abs().sum() == 0
        run = Mirror(model).free_run(*alone, limit[:1], noise=noise, stop_threshold=0.55)
        assert run.lengths[0] == free.lengths[i]
        assert run.stopped[0] == free.stopped[i]
        torch.testing.assert_close(run.mel[0], free.mel[i, : int(free.lengths[i])])


def test_what_stands_in_the_padding_does_not_matter() -> None:
    model = build(reduction_factor=2)
    symbols, symbol_lengths = torch.tensor([[1, 5, 3, 7], [2, 4, 0, 0]]), torch.tensor([4, 2])
    mel, lengths = mels(2, 9, torch.float64), torch.tensor([9, 5])
    clean = model(symbols, symbol_lengths, mel, lengths)
    mel[1, 5:], symbols[1, 2:] = float("nan"), 6
    dirty = model(symbols, symbol_lengths, mel, lengths)
    assert torch.equal(dirty.mel, clean.mel)
    assert torch.equal(dirty.alignments, clean.alignments)


def test_gradients_do_not_reach_padding() -> None:
    model = build(reduction_factor=2)
    symbols, symbol_lengths = texts(2, 1)
    mel = mels(2, 9, torch.float64).requires_grad_()
    out = model(symbols, symbol_lengths, mel, torch.tensor([9, 5]))
    (out.mel.square().sum() + out.hidden.square().sum()).backward()
    assert mel.grad is not None
    assert mel.grad[1, 5:].abs().sum() == 0
    assert mel.grad[1, :4].abs().sum() > 0


def test_hidden_states_and_alignments_have_the_sizes_that_the_settings_say() -> None:
    model = build(reduction_factor=3)
    symbols, symbol_lengths = texts(2, 1)
    out = model(symbols, symbol_lengths, mels(2, 8, torch.float64), torch.tensor([8, 5]))
    assert out.hidden.shape == (2, 3, model.config.hidden_width)
    assert out.alignments.shape == (2, model.config.num_alignments, 3, symbols.shape[1])
    other = build_model(config(guided_layers=2, guided_heads=1), NUM_SYMBOLS, NUM_MELS)
    assert (other.config.hidden_width, other.config.num_alignments) == (16, 2)


def test_an_lstm_cell_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(5, 4).double()
    x, hidden, before = (torch.randn(3, n, dtype=torch.float64) for n in (5, 4, 4))
    gates = x @ cell.weight_ih.T + cell.bias_ih + hidden @ cell.weight_hh.T + cell.bias_hh
    into, keep, candidate, out = gates.chunk(4, 1)  # PyTorch's order
    ours = lstm_cell(torch.cat([into, keep, out, candidate], 1), before)
    for mine, theirs in zip(ours, cell(x, (hidden, before)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_attention_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    layer = LocationAttention(8, 10, 3, 5).double()
    encoded = torch.randn(2, 6, 8, dtype=torch.float64)
    lengths = torch.tensor([6, 4])
    memory = layer.memory(encoded, length_mask(lengths, 6))
    before = layer.init_state(memory)
    assert all(part.abs().sum() == 0 for part in before)
    weights, total = torch.rand(2, 2, 6, dtype=torch.float64).unbind(1)
    before = Attended(before.context, weights, total)
    query = torch.randn(2, 8, dtype=torch.float64)
    after = layer(query, memory, before, layer.location_weight())
    filters = layer.filters.unflatten(1, (2, 5))
    for i, size in enumerate(lengths.tolist()):
        energies = []
        for j in range(size):
            place = torch.zeros(3, dtype=torch.float64)
            for k in range(5):
                if 0 <= j + k - 2 < 6:
                    place = place + filters[:, 0, k] * weights[i, j + k - 2]
                    place = place + filters[:, 1, k] * total[i, j + k - 2]
            inner = layer.query(query[i]) + layer.key(encoded[i, j]) + layer.location(place)
            energies.append(layer.energy(inner.tanh())[0])
        truth = torch.stack(energies).softmax(0)
        torch.testing.assert_close(after.weights[i, :size], truth)
        torch.testing.assert_close(after.context[i], truth @ encoded[i, :size])
    assert after.weights[1, 4:].abs().sum() == 0
    torch.testing.assert_close(after.total, total + after.weights)


def test_where_attention_was_changes_where_it_goes() -> None:
    model = build()
    symbols, lengths = torch.tensor([[3, 3, 3, 3, 3, 3, 3]]), torch.tensor([7])
    mirror = Mirror(model)
    state = mirror.start(symbols, lengths, 4)
    decoder = state.layers[0]
    moved = decoder._replace(
        attended=decoder.attended._replace(weights=torch.eye(7, dtype=torch.float64)[4:5])
    )
    here, _ = mirror.step(state)
    there, _ = mirror.step(replace(state, layers=(moved,)))
    assert (here.alignments - there.alignments).abs().max() > 1e-3


def test_a_window_holds_attention_to_its_way() -> None:
    model = build(reduction_factor=1)
    symbols, lengths = torch.randint(1, NUM_SYMBOLS, (2, 12)), torch.tensor([12, 7])
    window = AttentionWindow(ahead=2, back=1)
    run = Mirror(model).free_run(
        symbols, lengths, torch.tensor([30, 30]), stop_threshold=0.999, window=window
    )
    rest = torch.zeros(2, dtype=torch.int64)
    place = torch.arange(12)
    free = Mirror(model).free_run(symbols, lengths, torch.tensor([30, 30]), stop_threshold=0.999)
    assert (free.alignments[:, 0, :, 6:].sum() > 0).all()
    for t in range(30):
        weights = run.alignments[:, 0, t]
        at = torch.minimum(rest, lengths - 1)[:, None]
        outside = (place > at + 2) | (place < at - 1)
        assert weights[outside].abs().sum() == 0
        torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))
        rest = torch.maximum(rest, weights.argmax(1))


def loss_of(out: TeacherForced) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for number, name in enumerate(("mel", "mel_before", "stop_logits", "hidden", "alignments")):
        value = getattr(out, name)
        g = torch.Generator().manual_seed(number)
        total = total + (value * torch.randn(value.shape, generator=g, dtype=torch.float64)).sum()
    return total


def test_recomputed_activations_give_the_same_gradients_and_keep_less() -> None:
    model = build(dropout=0.0).train()
    symbols, symbol_lengths = texts(3, 2)
    frames = 2 * model.config.reduction_factor * RECOMPUTED_STEPS + 3
    mel, lengths = mels(3, frames, torch.float64), torch.tensor([frames, 9, 1])
    kept, gradients = [], []
    for anew in (False, True):
        model.recompute_activations = anew
        model.zero_grad()
        sizes: list[int] = []

        def keep(x: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = loss_of(model(symbols, symbol_lengths, mel, lengths))
        loss.backward()
        kept.append(sum(sizes))
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
    assert kept[1] < kept[0] / 2
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_dropout_noise_is_on_in_training_only() -> None:
    model = build(dropout=0.5)
    symbols, symbol_lengths = texts(2, 0)
    batch = (symbols, symbol_lengths, mels(2, 9, torch.float64), torch.tensor([9, 4]))
    assert torch.equal(model(*batch).hidden, model(*batch).hidden)
    model.train()
    assert not torch.equal(model(*batch).hidden, model(*batch).hidden)


def speak(model: Tacotron2) -> Tensor:
    symbols, lengths = texts(2, 0)
    limit = torch.tensor([9, 9])
    return Mirror(model).free_run(symbols, lengths, limit, stop_threshold=0.99).mel


@pytest.mark.parametrize("change", ["optimizer", "load", "assign", "to", "buffer", "deepcopy"])
def test_the_mirror_follows_the_model_whatever_happens_to_it(change: str) -> None:
    model, other = build(seed=1), build(seed=2)
    before = speak(model)
    if change == "optimizer":
        symbols, lengths = texts(2, 0)
        model(symbols, lengths, before, torch.tensor([9, 9])).mel.square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    elif change in ("load", "assign"):
        model.load_state_dict(other.state_dict(), assign=change == "assign")
        assert torch.equal(speak(model), speak(other))
    elif change == "to":
        model.to(torch.float16).to(torch.float64)
        model.mel_mean.add_(1)
    elif change == "buffer":
        model.set_mel_statistics(torch.zeros(NUM_MELS), torch.ones(NUM_MELS))
    else:
        twin = copy.deepcopy(model)
        assert torch.equal(speak(twin), before)
        with torch.no_grad():
            twin.decoder.gates.weight.add_(1)
        assert torch.equal(speak(model), before)
        model = twin
    assert not torch.equal(speak(model), before)


def test_a_free_run_leaves_what_it_started_from_as_it_was() -> None:
    model = build().train()
    symbols, lengths = texts(2, 0)
    mirror = Mirror(model)
    state = mirror.start(symbols, lengths, 5)
    first, _ = mirror.step(state)
    again, _ = mirror.step(state)
    assert torch.equal(first.frames, again.frames)
    assert model.training and model.decoder.training


@pytest.mark.parametrize("rows", [list(range(12)), [5, 3], [7, 7, 1]], ids=["all", "two", "three"])
def test_every_row_of_a_steady_run_has_the_bits_it_has_alone(rows: list[int]) -> None:
    sizes = {"width": 64, "prenet_width": 32, "attention_width": 48, "location_kernel": 15}
    model = build(torch.float32, **sizes)
    with torch.no_grad():
        model.stop_out.bias.fill_(-2.0)
    g = torch.Generator().manual_seed(0)
    symbols = torch.randint(1, NUM_SYMBOLS, (12, 64), generator=g)
    lengths = torch.randint(2, 60, (12,), generator=g)
    mirror = SteadyMirror(model)
    assert isinstance(mirror.model, Tacotron2) and type(model) is Tacotron2

    def spoken(rows: list[int]) -> list[Tensor]:
        at = torch.tensor(rows)
        noise = PrenetNoise(0, at)
        run = mirror.free_run(symbols[at], lengths[at], lengths[at], noise=noise)
        return [run.mel[i, :n] for i, n in enumerate(run.lengths.tolist())]

    for row, made in zip(rows, spoken(rows), strict=True):
        assert torch.equal(made, spoken([row])[0])


def test_no_engine_runs_it_and_nothing_sounds_like_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = build(torch.float32)
    assert native.obstacle(model) is not None
    assert resolve_precision(Precision.auto, model) == "float32"
    mirrors._say_once.cache_clear()
    with caplog.at_level(logging.INFO):
        speak(model)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert "the engines know the Transformer alone, this is tacotron2" in caplog.text


def test_a_free_run_of_a_longer_text_holds_more() -> None:
    model = build()
    held = workspace_bytes(model, torch.tensor([10, 20, 10]), torch.tensor([50, 50, 100]))
    assert held.dtype == torch.float64
    assert held[0] < held[1] and held[0] < held[2]


def test_what_it_cannot_do_is_one_line() -> None:
    model = build()
    with pytest.raises(UserError, match=r"^trainer.segment_steps: .* got model.kind=tacotron2"):
        check_segments(model, torch.device("cpu"))
    with pytest.raises(UserError, match=r"^method=through_time: .* got model.kind=tacotron2"):
        check_through_time(model)
    with pytest.raises(UserError, match=r"no ONNX form; got model.kind=tacotron2"):
        exportable(model)


def test_settings_choose_the_kind_and_old_ones_mean_the_transformer() -> None:
    old = {"width": 16, "num_heads": 2, "decoder_layers": 2}
    assert isinstance(build_model(ModelConfig(**old), 5, 4), TransformerTTS)
    kind = {"kind": "tacotron2"}  # as a checkpoint's meta.json has it
    assert isinstance(build_model(ModelConfig(**old, **kind), 5, 4), Tacotron2)
    with pytest.raises(ValueError, match=r"model.location_kernel must be odd, got 4"):
        ModelConfig(**old, location_kernel=4)


def test_its_weights_go_through_a_file() -> None:
    model, other = build(seed=1), build(seed=2)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(speak(model), speak(other))
