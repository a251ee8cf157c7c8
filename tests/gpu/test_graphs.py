"""Free runs by CUDA graphs on a device, against the plain mirror on the same device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_model import build, texts
from torch import Tensor, nn

from profforce.config import ModelConfig
from profforce.models import graph_machine, graphs
from profforce.models.free_run import FreeRun
from profforce.models.mirror import Mirror
from profforce.models.transformer import TransformerTTS
from profforce.nn.attention import LinearSelfAttention, register_self_attention
from profforce.nn.noise import PrenetNoise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
NEVER, AT_ONCE = -50.0, 50.0
"""Biases of the stop head."""


def model_on(
    device: str = "cuda", dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object
) -> TransformerTTS:
    model = build(dtype, seed, reduction_factor=1, width=64, **changes)
    with torch.no_grad():
        model.stop_out.bias.fill_(NEVER)
    return model.to(device)


def speak(
    model: TransformerTTS, limits: list[int], *, noisy: bool = True, **options: Any
) -> FreeRun:
    device = model.mel_mean.device
    symbols, lengths = texts(len(limits), 0)
    noise = PrenetNoise(3, torch.arange(len(limits), device=device) * 7919)
    return Mirror(model).free_run(
        symbols.to(device),
        lengths.to(device),
        torch.tensor(limits, device=device),
        noise=noise if noisy else None,
        **options,
    )


def assert_same(ours: FreeRun, truth: FreeRun, tolerance: float = TOLERANCE[torch.float32]) -> None:
    assert torch.equal(ours.lengths, truth.lengths)
    assert torch.equal(ours.stopped, truth.stopped)
    for name in ("mel", "mel_before", "stop_probability", "alignments"):
        torch.testing.assert_close(
            getattr(ours, name), getattr(truth, name), rtol=tolerance, atol=tolerance
        )


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """A replay for every graph that is captured."""
    made: list[Callable[[], None]] = []
    capture = graph_machine._capture

    def noted(*args: Any) -> Callable[[], None]:
        made.append(capture(*args))
        return made[-1]

    monkeypatch.setattr(graph_machine, "_capture", noted)
    return made


LIMITS = [3, 70, 33, 1, 32, 64, 65, 9, 40, 12, 11, 100]


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("noisy", [False, True], ids=["plain", "noisy"])
@pytest.mark.parametrize("rezero", [False, True], ids=["norm", "rezero"])
def test_graphs_make_the_plain_mirrors_frames(
    attention: str, dtype: torch.dtype, noisy: bool, rezero: bool, captures: list[Any]
) -> None:
    model = model_on(dtype=dtype, attention=attention, rezero=rezero)
    assert graphs.obstacle(model) is None
    ours = speak(model, LIMITS, noisy=noisy)
    assert len(captures) == 2, "of 16 rows and of 8"
    assert_same(ours, speak(model, LIMITS, noisy=noisy, plain=True), TOLERANCE[dtype])


def test_an_utterance_that_stops_by_itself_ends_there() -> None:
    model = model_on()
    with torch.no_grad():
        model.stop_out.bias.fill_(AT_ONCE)
    run = speak(model, LIMITS)
    assert run.lengths.tolist() == [1] * len(LIMITS) and run.stopped.all()
    assert_same(run, speak(model, LIMITS, plain=True))


def test_the_next_run_replays_what_is_captured(captures: list[Any]) -> None:
    model = model_on()
    first = speak(model, LIMITS)
    count = len(captures)
    again = speak(model, LIMITS)
    speak(model, [5, 6, 90])
    assert len(captures) == count
    assert torch.equal(first.mel, again.mel)


def test_repeated_runs_hold_no_more_memory() -> None:
    model = model_on(attention="softmax")
    speak(model, LIMITS)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        speak(model, LIMITS)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_optimizer_step_between_two_runs_is_seen(precision: str, captures: list[Any]) -> None:
    """Its tensors come from the memory that the graphs' own tensors must not share."""
    model = model_on()
    before = speak(model, LIMITS, precision=precision)
    count = len(captures)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    symbols, lengths = (x.cuda() for x in texts(len(LIMITS), 0))
    mel, frames = before.mel.detach(), before.lengths
    model.train()
    model(symbols, lengths, mel, frames).mel.square().mean().backward()
    model.eval()
    optimizer.step()
    after = speak(model, LIMITS, precision=precision)
    assert len(captures) == count
    assert not torch.equal(before.mel, after.mel)
    if precision == "float32":
        assert_same(after, speak(model, LIMITS, plain=True))


def _assign(model: TransformerTTS) -> None:
    other = model_on(seed=2)
    model.load_state_dict(other.state_dict(), assign=True)


def _there_and_back(model: TransformerTTS) -> None:
    model.cpu()
    with torch.no_grad():
        model.mel_out.weight.mul_(0.5)
    model.cuda()


def _another_module(model: TransformerTTS) -> None:
    model.decoder[0] = model_on(seed=2).decoder[0]


@pytest.mark.parametrize("change", [_assign, _there_and_back, _another_module])
def test_other_storage_is_captured_anew(
    change: Callable[[TransformerTTS], None], captures: list[Any]
) -> None:
    model = model_on()
    before = speak(model, LIMITS)
    count = len(captures)
    change(model)
    after = speak(model, LIMITS)
    if change is not _there_and_back:  # which may be given the same places again
        assert len(captures) > count
    assert not torch.equal(before.mel, after.mel)
    assert_same(after, speak(model, LIMITS, plain=True))


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_bfloat16_changes_the_frames_a_little(attention: str) -> None:
    model = model_on(attention=attention)
    exact = speak(model, [12] * 5, plain=True).mel_before
    low = speak(model, [12] * 5, precision="bfloat16").mel_before
    error = float((low - exact).square().mean().sqrt() / exact.std())
    assert 1e-4 < error < 0.03


def test_a_stream_of_the_callers_own() -> None:
    model = model_on()
    truth = speak(model, LIMITS)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        ours = speak(model, LIMITS)
        small = speak(model, LIMITS, precision="bfloat16")  # captured from this stream
        assert torch.cuda.current_stream() == stream
    stream.synchronize()
    assert torch.equal(ours.mel, truth.mel)
    assert small.mel.isfinite().all()


def test_inference_mode_and_autocast_around_a_run() -> None:
    model = model_on()
    truth = speak(model_on(), LIMITS, plain=True)
    with torch.inference_mode():
        assert_same(speak(model, LIMITS), truth)
    assert_same(speak(model, LIMITS), truth)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_two_devices_in_turn(captures: list[Any]) -> None:
    first, second = model_on("cuda:0"), model_on("cuda:1")
    runs = [speak(model, LIMITS) for model in (first, second, first, second)]
    assert len(captures) == 4 and torch.cuda.current_device() == 0
    for run in runs:
        torch.testing.assert_close(run.mel.cpu(), runs[0].mel.cpu(), rtol=1e-4, atol=1e-4)
    assert_same(runs[1], speak(second, LIMITS, plain=True))


class Reads(LinearSelfAttention):
    """Breaks its promise: it reads the number of the step on the host."""

    steps_on_device = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.extra = nn.Linear(1, 1)

    def step(self, x: Tensor, state: Any, t: int | Tensor) -> tuple[Tensor, Any]:
        return super().step(x * (1 + int(t) % 2), state, t)


register_self_attention("reads_the_step", Reads)


def test_what_cannot_be_captured_is_run_by_the_modules() -> None:
    """The last one of the file: a failed capture must leave the device as it was."""
    model = model_on(attention="reads_the_step")
    stream = torch.cuda.current_stream()
    truth = speak(model, LIMITS, plain=True)
    assert_same(speak(model, LIMITS), truth, 0)
    assert torch.cuda.current_stream() == stream
    reason = graphs.obstacle(model)
    assert reason is not None and "cannot be captured" in reason
    healthy = model_on(seed=5)
    assert_same(speak(healthy, LIMITS), speak(healthy, LIMITS, plain=True))
