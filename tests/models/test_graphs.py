"""The steps that a CUDA graph repeats, run one by one on the CPU, against the plain mirror."""

import copy
import functools
import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import NUM_MELS, NUM_SYMBOLS, PLACES, build, config, texts
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from profforce.config import Activation, FeatureMap, ModelConfig
from profforce.kernels import ops
from profforce.models import graph_machine, graphs, mirror
from profforce.models.free_run import FreeRun, Outputs
from profforce.models.graph_machine import CaptureError
from profforce.models.graph_room import Decoder, Room, Size, _tensors
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import SelfAttention, register_self_attention
from profforce.nn.noise import PrenetNoise

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class RunningMean(SelfAttention):
    """A user's own layer, whose state is another tensor after every step."""

    steps_on_device = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.value = nn.Linear(config.width, config.width)

    def init_state(self, batch: int, max_steps: int, like: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        return like.new_ones(batch, self.value.out_features), (like.new_zeros(batch, 1),)

    def step(self, x: Tensor, state: Any, t: int | Tensor) -> tuple[Tensor, Any]:
        mean, (count,) = state
        mean = mean + (self.value(x) - mean) / (t + 2)
        return mean + count / 50, (mean, (count + 1,))


class Unpromised(RunningMean):
    """Inherits the step, and with it no promise."""


for name, layer in (("steady_mean", RunningMean), ("unpromised", Unpromised)):
    register_self_attention(name, layer)


def arguments(
    batch: int, seed: int, *, noisy: bool = True, limit: Tensor | None = None
) -> dict[str, Any]:
    symbols, lengths = texts(batch, seed)
    g = torch.Generator().manual_seed(seed)
    most = torch.randint(1, 24, (batch,), generator=g)
    who = torch.randint(0, 2**40, (batch,), generator=g)
    return {
        "symbols": symbols,
        "symbol_lengths": lengths,
        "max_frames": most if limit is None else limit,
        "noise": PrenetNoise(seed, who) if noisy else None,
        "speakers": None,
        "stop_threshold": 0.6,
        "precision": "float32",
    }


def run(model: TransformerTTS, given: dict[str, Any], **options: Any) -> FreeRun:
    """The engine's own run, without a GPU."""
    steps = -(-int(given["max_frames"].max()) // model.config.reduction_factor)
    out = Outputs.allocate(model, given["symbols"], steps, alignments=True)
    graphs.run_on_device(model, outputs=out, **given, **options)
    return out.finish(model, Mirror(model).refine)


def plain(model: TransformerTTS, given: dict[str, Any]) -> FreeRun:
    return Mirror(model).free_run(**given, plain=True)


def assert_same(ours: FreeRun, truth: FreeRun, tolerance: float) -> None:
    assert torch.equal(ours.lengths, truth.lengths)
    assert torch.equal(ours.stopped, truth.stopped)
    for name in ("mel", "mel_before", "stop_probability", "alignments"):
        mine, theirs = getattr(ours, name), getattr(truth, name)
        torch.testing.assert_close(
            mine, theirs, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@settings(max_examples=24, deadline=None)
@given(
    attention=st.sampled_from(["linear", "softmax", "steady_mean"]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    reduction=st.sampled_from([1, 2, 3]),
    feature_map=st.sampled_from([FeatureMap.elu, FeatureMap.relu]),
    activation=st.sampled_from(list(Activation)),
    rezero=st.booleans(),
    noisy=st.booleans(),
    num_speakers=st.sampled_from([0, 3]),
    guided=st.sampled_from([1, 2]),
    batch=st.sampled_from([1, 4, 12]),
    steps=st.sampled_from([1, 4, 32]),
    group=st.sampled_from([3, 128]),
    places=st.sampled_from(PLACES),
    seed=st.integers(0, 999),
)
def test_the_steps_of_a_graph_make_the_plain_mirrors_frames(
    attention: str,
    dtype: torch.dtype,
    reduction: int,
    feature_map: FeatureMap,
    activation: Activation,
    rezero: bool,
    noisy: bool,
    num_speakers: int,
    guided: int,
    batch: int,
    steps: int,
    group: int,
    places: dict[str, object],
    seed: int,
) -> None:
    model = build(
        dtype,
        seed,
        attention=attention,
        reduction_factor=reduction,
        feature_map=feature_map,
        activation=activation,
        rezero=rezero,
        num_speakers=num_speakers,
        guided_heads=guided,
        guided_layers=guided,
        **places,
    )
    given = arguments(batch, seed, noisy=noisy)
    if num_speakers:
        given["speakers"] = torch.arange(batch) % num_speakers
    ours = run(model, given, steps_a_graph=steps, group_size=group)
    assert_same(ours, plain(model, given), TOLERANCE[dtype])


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the utterances that run, a replay."""
    seen: list[int] = []
    replay = graph_machine.Machine.replay
    monkeypatch.setattr(
        graph_machine.Machine, "replay", lambda self, rows: seen.append(rows) or replay(self, rows)
    )
    return seen


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_those_that_run_on_move_into_a_smaller_graph(attention: str, replays: list[int]) -> None:
    model = build(torch.float64, attention=attention, reduction_factor=1)
    with torch.no_grad():
        model.stop_out.bias.fill_(-50)
    limit = torch.tensor([4, 30, 4, 4, 4, 12, 4, 4, 4, 4, 4, 4, 26, 4, 4, 4, 4, 4, 40, 4] * 2)
    given = arguments(len(limit), 0, limit=limit)
    ours = run(model, given, steps_a_graph=4)
    assert replays == [40, *[8] * 9], "32 of 40 ended in the first replay, the last at frame 40"
    assert not ours.stopped.any() and torch.equal(ours.lengths, limit)
    assert_same(ours, plain(model, given), 1e-10)
    replays.clear()
    assert_same(run(model, given, steps_a_graph=4, compact=False), ours, 1e-10)
    assert replays == [40] * 10


def test_a_group_ends_with_its_last_utterance(replays: list[int]) -> None:
    model = build(torch.float32)
    with torch.no_grad():
        model.stop_out.bias.fill_(50)
    ours = run(model, arguments(3, 0, limit=torch.tensor([400, 400, 400])), steps_a_graph=4)
    assert ours.lengths.tolist() == [1, 1, 1] and ours.stopped.all()
    assert replays == [3]
    assert ours.mel.shape[1] == 1


def machines(model: TransformerTTS) -> list[graph_machine.Machine]:
    return list(graph_machine._MACHINES.get(model, {}).values())


def test_runs_of_about_the_same_size_share_a_machine() -> None:
    model = build(torch.float32, attention="softmax")
    run(model, arguments(5, 0))
    (first,) = machines(model)
    made = dict(first._replays)
    run(model, arguments(3, 1))
    assert machines(model) == [first] and first._replays == made
    run(model, arguments(20, 2))
    (second,) = machines(model)
    assert second is not first and second.size.rows == 32
    run(model, arguments(3, 1))
    assert machines(model) == [second]
    run(model, arguments(3, 1, limit=torch.tensor([9, 2500, 3])))
    (long,) = machines(model)
    assert long.size.places == 1280 and long.size.rows == 32
    run(model, arguments(3, 1))
    assert machines(model)[0].size.places == 256, "a step reads all places of the cache"


def test_a_state_of_constant_size_takes_any_number_of_steps() -> None:
    model = build(torch.float32)
    run(model, arguments(3, 1))
    (first,) = machines(model)
    run(model, arguments(3, 1, limit=torch.tensor([9, 600, 3])))
    assert machines(model) == [first] and first.size.places == 0


@pytest.mark.parametrize("change", ["in_place", "assign", "to", "module", "dropout"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_parameters_are_read_as_they_are(change: str, precision: str) -> None:
    """On a GPU a graph that read from where they were would give the frames of before."""
    model, other = build(torch.float32, 1), build(torch.float32, 2)
    given = arguments(3, 0) | {"precision": precision}
    before = run(model, given)
    (kept,) = machines(model)
    if change == "in_place":
        model.load_state_dict(other.state_dict())
    elif change == "assign":
        model.load_state_dict(other.state_dict(), assign=True)
    elif change == "to":
        model.to(torch.float64).to(torch.float32)
    elif change == "dropout":
        model.prenet.dropout = 0.1
    else:
        model.decoder[0] = other.decoder[0]
    after = run(model, given)
    assert (machines(model) == [kept]) == (change == "in_place")
    if change != "to":
        assert not torch.equal(before.mel[:, :1], after.mel[:, :1])
    assert torch.equal(after.mel, run(copy.deepcopy(model), given).mel)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_bfloat16_changes_the_frames_a_little(attention: str) -> None:
    model = build(torch.float32, reduction_factor=2, width=64, attention=attention)
    given = arguments(5, 0, limit=torch.full((5,), 12))
    exact = plain(model, given).mel_before
    low = run(model, given | {"precision": "bfloat16"}).mel_before
    assert exact.shape == low.shape and low.dtype == torch.float32
    error = float((low - exact).square().mean().sqrt() / exact.std())
    assert 1e-4 < error < 0.02
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_int8_is_bfloat16_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = build(torch.float32)
    given = arguments(3, 0)
    graphs._say_once.cache_clear()
    with caplog.at_level(logging.INFO):
        small = [run(model, given | {"precision": "int8"}).mel for _ in "ab"]
    assert caplog.text.count("no int8 weights") == 1
    assert torch.equal(small[0], run(model, given | {"precision": "bfloat16"}).mel)


def test_a_run_within_autocast_or_inference_mode_is_the_same() -> None:
    model, given = build(torch.float32), arguments(3, 0)
    with torch.inference_mode():
        inside = run(model, given)
    outside = run(model, given)
    assert torch.equal(inside.mel_before, outside.mel_before)
    (machine,) = machines(model)
    with torch.autocast("cpu", torch.bfloat16):
        machine._run(machine.room, 2)
    assert machine.room.mel.dtype == torch.float32
    halves = machine.room.mel.to(torch.bfloat16).to(torch.float32)
    assert not torch.equal(machine.room.mel[:3, :2], halves[:3, :2])


def test_what_is_kept_for_a_model_goes_with_it() -> None:
    model = build(torch.float32)
    run(model, arguments(3, 0))
    run(model, arguments(3, 0) | {"precision": "bfloat16"})
    assert len(machines(model)) == 2
    gone = [weakref.ref(model), *(weakref.ref(machine) for machine in machines(model))]
    del model
    gc.collect()
    assert all(ref() is None for ref in gone)


def test_frames_that_are_not_numbers_spread_to_no_other_run() -> None:
    model, other = (build(torch.float32, attention="softmax") for _ in "ab")
    with torch.no_grad():
        model.decoder[0].attention.qkv.bias.fill_(float("nan"))
        model.decoder[0].cross.kv.bias.fill_(float("nan"))
    longer = {"symbols": torch.ones(3, 40, dtype=torch.int64)}
    broken = run(model, arguments(3, 0) | longer | {"symbol_lengths": torch.full((3,), 40)})
    assert broken.mel[0, 0].isnan().all()
    model.load_state_dict(other.state_dict())
    given = arguments(3, 0)
    assert_same(run(model, given), plain(model, given), 1e-5)


def test_training_mode_is_left_as_it_was() -> None:
    model = build(torch.float32, dropout=0.5)
    given = arguments(3, 0)
    truth = plain(model, given)
    model.train()
    model.decoder[1].eval()
    assert_same(run(model, given), truth, 1e-5)
    assert model.training and model.decoder[0].training and not model.decoder[1].training


# ---------------------------------------------------------------- nothing is read on the host


class Watch(TorchDispatchMode):
    """Notes the operations, and refuses tensors of another device than the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name()
        self.names.append(name)
        out = func(*args, **(kwargs or {}))
        for x in (*args, *(kwargs or {}).values(), out):
            if isinstance(x, Tensor) and x.device.type != "cuda":
                raise AssertionError(f"{name} takes or makes a tensor on {x.device}")
        return out


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on a GPU that have no values: what reads one raises."""

    def operator(q: Tensor, k: Tensor, v: Tensor, state: Any, name: str) -> Tensor:
        return ops.causal_linear_step_op(q, k, v, *state, name)

    monkeypatch.setattr(ops, "_step", operator)
    with FakeTensorMode():
        yield


def room_on_gpu(**changes: object) -> tuple[Decoder, Room]:
    with torch.device("cuda"):
        model = TransformerTTS(config(**changes), NUM_SYMBOLS, NUM_MELS).eval()
    size = Size(rows=8, symbols=64, places=256, steps=4)
    decoder = Decoder(model)
    return decoder, Room.allocate(decoder, size, torch.float32, noisy=True)


HOST = ("_local_scalar_dense", "nonzero", "is_nonzero", "lift_fresh", "_unique", "masked_select")
"""Operations that read a value, make a shape of one, or bring a number of the host."""


@pytest.mark.parametrize("attention", ["linear", "softmax", "steady_mean"])
@pytest.mark.parametrize("rezero", [False, True], ids=["norm", "rezero"])
@pytest.mark.parametrize("places", PLACES, ids=lambda p: "-".join(map(str, p.values())))
@pytest.mark.usefixtures("fake_gpu")
def test_a_step_reads_no_value_and_makes_no_shape_of_one(
    attention: str, rezero: bool, places: dict[str, object]
) -> None:
    decoder, room = room_on_gpu(attention=attention, rezero=rezero, **places)
    with torch.no_grad(), Watch() as watch:
        for place in range(room.num_steps):
            room.step(decoder, place)
    assert len(watch.names) > 100
    assert not [name for name in watch.names if any(host in name for host in HOST)]


class Reads(RunningMean):
    """Breaks its promise."""

    steps_on_device = True

    def step(self, x: Tensor, state: Any, t: int | Tensor) -> tuple[Tensor, Any]:
        return super().step(x, state, int(t))


class Brings(RunningMean):
    """A number of the host in every step."""

    steps_on_device = True

    def step(self, x: Tensor, state: Any, t: int | Tensor) -> tuple[Tensor, Any]:
        return super().step(x + torch.tensor(1.0, device=x.device), state, t)


register_self_attention("reads", Reads)
register_self_attention("brings", Brings)


@pytest.mark.usefixtures("fake_gpu")
def test_the_test_above_would_notice() -> None:
    decoder, room = room_on_gpu(attention="reads")
    with torch.no_grad(), pytest.raises(DataDependentOutputException):
        room.step(decoder, 0)
    decoder, room = room_on_gpu(attention="brings")
    with torch.no_grad(), pytest.raises(AssertionError, match="on cpu"), Watch():
        room.step(decoder, 0)


@pytest.mark.parametrize("attention", ["linear", "softmax", "steady_mean"])
def test_every_step_writes_to_the_same_places(attention: str) -> None:
    model = build(torch.float32, attention=attention)
    decoder = Decoder(model)
    room = Room.allocate(decoder, Size(8, 64, 256, 4), torch.float32, noisy=True)
    held = [room.t, room.mel, room.stop_logits, room.alignments, room.positions]
    held += _tensors(room.layers) + _tensors(room.memories)
    before = [x.data_ptr() for x in held]
    half = room.part(4)
    with torch.no_grad():
        half.step(decoder, 0)
        half.step(decoder, 1)
    assert [x.data_ptr() for x in held] == before
    assert int(room.t) == 2
    assert room.mel[:4, :2].abs().sum(-1).gt(0).all()
    assert room.mel[4:].eq(0).all() and room.mel[:, 2:].eq(0).all()
    for layer, first in zip(_tensors(room.layers), _tensors(room.first), strict=True):
        assert not torch.equal(layer[:4], first.expand_as(layer[:4]))
        assert torch.equal(layer[4:], first.expand_as(layer[4:]))


# ---------------------------------------------------------------- the order of a capture


class Gpu:
    """What :func:`graph_machine._capture` asks of ``torch.cuda``, noted in order."""

    def __init__(self, end: Exception | None = None) -> None:
        self.events: list[str] = []
        self.current = "here"
        self.end = end

    def Stream(self, device: torch.device) -> "Stream":  # noqa: N802
        return Stream(self, "side")

    def current_stream(self, device: torch.device) -> "Stream":
        return Stream(self, self.current)

    @contextmanager
    def stream(self, chosen: "Stream") -> Iterator[None]:
        before, self.current = self.current, chosen.name
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> "Gpu":  # noqa: N802
        return self

    def replay(self) -> None:
        self.events.append("replay")

    @contextmanager
    def graph(self, graph: "Gpu", stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        assert graph is self and capture_error_mode == "thread_local"
        self.current = stream.name  # like the true one, it stays so when the end of it fails
        try:
            yield
        finally:
            if self.end is not None:
                raise self.end
        self.current = "here"


@dataclass(frozen=True)
class Stream:
    """A stream of the noted GPU."""

    gpu: Gpu
    name: str

    def wait_stream(self, other: "Stream") -> None:
        self.gpu.events.append(f"{self.name} waits for {other.name}")


def capture_on(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, work: Any) -> Any:
    monkeypatch.setattr(torch, "cuda", gpu)
    graph_machine._side_stream.cache_clear()
    try:
        return graph_machine._capture(
            lambda: gpu.events.append(f"warm-up on {gpu.current}"), work, torch.device("cuda", 0)
        )
    finally:
        graph_machine._side_stream.cache_clear()


def test_a_capture_is_warmed_up_on_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()

    def work() -> None:
        gpu.events.append(f"work on {gpu.current}, collecting {gc.isenabled()}")

    replay = capture_on(gpu, monkeypatch, work)
    replay()
    assert gpu.events == [
        *("side waits for here", "warm-up on side", "here waits for side"),
        *("work on side, collecting False", "replay"),
    ]
    assert gpu.current == "here" and gc.isenabled()


def test_a_failed_capture_says_its_first_reason_and_leaves_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(end=RuntimeError("invalidated"))

    def work() -> None:
        raise RuntimeError("not permitted\nwhen capturing")

    with pytest.raises(CaptureError, match="captured: not permitted when capturing"):
        capture_on(gpu, monkeypatch, work)
    assert gpu.current == "here" and gc.isenabled()


# ---------------------------------------------------------------- who is run


class Doubled(nn.Linear):
    """A layer with a will of its own."""


class OwnFrames(TransformerTTS):
    """A model with its own last layer."""

    def frames(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        mel, stop = super().frames(hidden)
        return mel + 1, stop


def _another_layer(model: TransformerTTS) -> None:
    model.decoder[0].cross.out = Doubled(16, 16)


def _a_hook(model: TransformerTTS) -> None:
    model.decoder[1].feedforward.register_forward_hook(lambda module, inputs, out: out * 2)


def _a_parametrisation(model: TransformerTTS) -> None:
    nn.utils.parametrizations.weight_norm(model.mel_out)


def _own_frames(model: TransformerTTS) -> None:
    model.__class__ = OwnFrames


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_another_layer, "Doubled decoder.0.cross.out"),
        (_a_hook, "FeedForward decoder.1.feedforward has hooks"),
        (_a_parametrisation, "ParametrizedLinear mel_out"),
        (_own_frames, "OwnFrames makes frames in its own way"),
    ],
)
def test_a_changed_model_is_not_captured(change: Any, words: str) -> None:
    model = build(torch.float32)
    assert graphs.unfit(model) is None
    change(model)
    reason = graphs.unfit(model)
    assert reason is not None and words in reason


def test_layers_of_encoder_and_postnet_may_be_anything() -> None:
    model = build(torch.float32)
    model.encoder[0].attention.out = Doubled(16, 16)
    model.postnet.register_forward_hook(lambda module, inputs, out: out)
    assert graphs.unfit(model) is None


def test_a_layer_of_ones_own_promises_for_itself() -> None:
    assert graphs.unfit(build(torch.float32, attention="steady_mean")) is None
    reason = graphs.unfit(build(torch.float32, attention="unpromised"))
    assert reason == "Unpromised decoder.0.attention does not say steps_on_device"


def test_the_cpu_has_another_engine() -> None:
    assert graphs.obstacle(build(torch.float32)) == "the model is on cpu"


def test_what_cannot_be_captured_is_run_by_the_modules_and_never_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(torch.float64)  # which the engine of the CPU does not run
    with torch.no_grad():
        model.stop_out.bias.fill_(-50)
    given = arguments(20, 0, limit=torch.arange(1, 21))
    truth = plain(model, given)
    tries = []

    def replay(self: graph_machine.Machine, rows: int) -> None:
        tries.append(rows)
        if rows < 20:  # in the midst of a run, when some have ended already
            raise CaptureError("its steps cannot be captured: not here")
        self._run(self.room, self.room.num_steps)
        self.room.stop_logits[15:] = 50  # nothing of what came before may remain

    monkeypatch.setattr(graph_machine.Machine, "replay", replay)
    monkeypatch.setattr(graphs, "obstacle", graphs.unfit)
    short = functools.partial(graphs.run_on_device, steps_a_graph=2)
    monkeypatch.setattr(graphs, "run_on_device", short)
    mirror._say_once.cache_clear()
    with caplog.at_level(logging.INFO):
        first = Mirror(model).free_run(**given)
        again = Mirror(model).free_run(**given)
    assert len(tries) > 1 and tries[-1] < 20 and tries.count(tries[-1]) == 1
    assert_same(first, truth, 0)
    assert_same(again, truth, 0)
    assert caplog.text.count("cannot be captured: not here") == 1


def test_the_mirror_runs_the_engine_and_its_own_postnet(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = build(torch.float32), arguments(5, 0)
    monkeypatch.setattr(graphs, "obstacle", graphs.unfit)
    truth = plain(model, given)
    monkeypatch.setattr(Mirror, "step", lambda *_: pytest.fail("stepped through the modules"))
    ours = Mirror(model).free_run(**given)
    assert_same(ours, truth, 1e-5)
    assert torch.equal(ours.mel, run(model, given).mel)
    bare = Mirror(model).free_run(**given, refine=False, alignments=False)
    assert torch.equal(bare.mel, bare.mel_before) and bare.alignments.shape[1] == 0
    assert ours.mel.shape[2] == NUM_MELS
    assert replace(bare, mel=ours.mel).mel is ours.mel
