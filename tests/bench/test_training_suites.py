"""Suites ``train`` and ``epoch``: the steps are a run's own, the advice follows from the rows."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from profforce.app import main
from profforce.bench import epoch, train
from profforce.bench.noise import noise_corpus, spread_lengths
from profforce.bench.report import Row
from profforce.bench.steps import Free, StepKind, TrainingSteps
from profforce.bench.suite import find_suite
from profforce.commands.bench import _bench_settings
from profforce.config import (
    BenchConfig,
    BenchDtype,
    MethodConfig,
    MethodName,
    TrainConfig,
    TrainingBenchConfig,
)
from profforce.errors import UserError
from profforce.training.gates import ForcingWeights
from profforce.training.pool import PoolBatch
from profforce.training.step import FreeTexts, differentiate, professor_forcing_step

CPU = torch.device("cpu")
SMALL_WORDS = [
    "model.width=16",
    "model.num_heads=2",
    "model.feedforward_width=16",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.guided_layers=1",
    "model.reduction_factor=2",
    "model.cross_attention=content",  # in segments, too
    "discriminator.width=8",
    "discriminator.crop_steps=4",
    "freerun.batch_size=2",
    "method.interval=2",
    "trainer.batch_size=2",
]
QUICK = ["repeats=2", "threads=1", "device=cpu", "memory=false"]


@pytest.fixture(scope="module")
def training() -> TrainConfig:
    settings = _bench_settings(["suite=train", *SMALL_WORDS])
    assert isinstance(settings, TrainingBenchConfig)
    return settings.training


def make_steps(training: TrainConfig, count: int = 4) -> TrainingSteps:
    return TrainingSteps(training, noise_corpus(training, [(12, 5)] * count), CPU)


def names_of(settings: BenchConfig) -> list[str]:
    groups = find_suite(settings.suite).groups(settings, CPU)
    return [name for group in groups.values() for name in group]


def weights_of(steps: TrainingSteps) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in steps.state.model.parameters()])


def test_settings_of_bench_and_training_are_one_list() -> None:
    settings = _bench_settings(["suite=train", "repeats=3", "model.width=64", "seed=5"])
    assert isinstance(settings, TrainingBenchConfig)
    assert settings.repeats == 3 and settings.training.model.width == 64
    assert settings.training.seed == settings.seed == 5
    assert settings.training.model.decoder_layers == 3, "the demo's, unless another is named"
    assert settings.words == ["experiment=demo", "model.width=64"] and not settings.from_corpus
    other = _bench_settings(["suite=epoch", "experiment=asterisk", "data=demo"])
    assert isinstance(other, TrainingBenchConfig)
    assert other.training.model.width == 160 and other.from_corpus


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["suite=train", "shapes=[8x168]"], "'8x168' is no shape; expected BxTxS"),
        (["suite=train", "model.widht=3"], "did you mean 'model.width'"),
        (["suite=train", "dtype=bfloat16"], "dtype: training runs in float32"),
        (["suite=kernel", "model.width=3"], "model.width"),
        (["suite=epoch", "shapes=[8x9x4,8x10x4]"], "suite epoch takes one shape"),
        (["suite=epoch", "shapes=[8x9x4]", "data=demo"], "a corpus has lengths of its own"),
        (["suite=epoch", "data=custom", "data.root=nowhere"], "no corpus here"),
        (["suite=epoch", "budget=1.5"], "bench.budget must be > 0 and < 1"),
        (["suite=epoch", "max_uses=0"], "bench.max_uses must be > 0"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured.err
    assert said in captured.err


def test_a_training_is_asked_for() -> None:
    for name in ("train", "epoch"):
        with pytest.raises(UserError, match="was given no settings of one"):
            find_suite(name).cases(BenchConfig(suite=name))


def test_a_step_is_that_of_the_loop(training: TrainConfig) -> None:
    """The same weights as from the loop's own optimizer step on the same batch."""
    steps, other = make_steps(training), make_steps(training)
    batch = steps.batch([0, 1])
    torch.manual_seed(3)
    steps.take(StepKind(Free.none), batch, None)
    state = other.state
    torch.manual_seed(3)
    noise = epoch_noise(training, batch)
    losses = professor_forcing_step(
        state.model,
        state.discriminator,
        state.control,
        batch,
        None,
        noise=noise,
        weights=ForcingWeights(),
        judge_learns=True,
        crop_generator=torch.Generator(),
        config=training,
    )
    differentiate(losses)
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), training.trainer.clip_norm)
    state.optimizer.step()
    torch.testing.assert_close(weights_of(steps), weights_of(other))


def epoch_noise(training: TrainConfig, batch: object) -> object:
    from profforce.nn.noise import PrenetNoise

    return PrenetNoise(training.seed, batch.indices)  # type: ignore[attr-defined]


def test_every_way_to_step_does_what_its_name_says(
    training: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profforce.bench import steps as module

    seen: list[tuple[object, ...]] = []

    def spy(model, judge, control, real, made, **settings):  # type: ignore[no-untyped-def]
        method = settings["config"].method
        how = (model.recompute_activations, method.recompute_steps, model.segment_steps)
        seen.append((type(made), settings["weights"], *how))
        return professor_forcing_step(model, judge, control, real, made, **settings)

    monkeypatch.setattr(module, "professor_forcing_step", spy)
    method = MethodConfig(MethodName.professor_forcing, weight=0.3, imitation_weight=0.7)
    settings = TrainingBenchConfig(suite="train", training=replace(training, method=method))
    case = {"B": 2, "T": 40, "S": 5}
    forms = find_suite("train").forms(list(train.KINDS), case, settings, CPU)
    seen.clear()
    for form in forms.values():
        form.run()
    nothing, on = type(None), ForcingWeights(free=0.3, imitation=0.7)
    judged, none = ForcingWeights(free=0.3), ForcingWeights()
    assert dict(zip(forms, seen, strict=True)) == {
        "teacher_forcing": (nothing, on, False, None, None),
        "professor_forcing": (PoolBatch, on, False, None, None),
        "adversarial": (PoolBatch, judged, False, None, None),
        "adversarial_shut": (PoolBatch, none, False, None, None),
        "through_time": (FreeTexts, judged, False, None, None),
        "teacher_forcing_recompute": (nothing, on, True, 8, None),
        "professor_forcing_recompute": (PoolBatch, on, True, 8, None),
        "through_time_recompute": (FreeTexts, judged, True, 8, None),
        "teacher_forcing_segments": (nothing, on, False, None, 16),
        "professor_forcing_segments": (PoolBatch, on, False, None, 16),
    }


def test_steps_change_model_and_discriminator(training: TrainConfig) -> None:
    steps = make_steps(training)
    pool = steps.generate(2).draw(2, CPU)

    def judge() -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in steps.state.judges.parameters()])

    weights, told = weights_of(steps), judge()
    steps.take(StepKind(Free.none), steps.batch([0, 1]), None)
    assert not torch.equal(weights, weights_of(steps)) and torch.equal(told, judge())
    weights = weights_of(steps)
    steps.take(StepKind(Free.pool), steps.batch([0, 1]), pool)  # as the run's method: no judge
    assert not torch.equal(weights, weights_of(steps)) and torch.equal(told, judge())
    steps.take(StepKind(Free.pool, judged=True), steps.batch([0, 1]), pool)
    assert not torch.equal(told, judge())
    assert all(p.grad is None for p in steps.state.model.parameters())


def test_accumulated_batches_are_part_of_a_step(training: TrainConfig) -> None:
    steps = make_steps(replace(training, trainer=replace(training.trainer, accumulate=3)))
    calls = []
    steps.state.model.register_forward_hook(lambda *_: calls.append(None))
    steps.take(StepKind(Free.none), steps.batch([0, 1]), None)
    assert len(calls) == 3


def test_free_runs_are_as_long_as_the_recordings(training: TrainConfig) -> None:
    steps = TrainingSteps(training, noise_corpus(training, [(9, 3), (14, 5), (30, 9)]), CPU)
    batch = steps.generate(6).draw(6, CPU).batch
    assert sorted(batch.mel_lengths.tolist()) == [9, 9, 14, 14, 30, 30]


def test_noise_has_the_lengths_asked_for(training: TrainConfig) -> None:
    lengths = spread_lengths(100, 20, 5)
    assert lengths == [(50, 10), (75, 15), (100, 20), (125, 25), (150, 30)]
    assert spread_lengths(7, 3, 1) == [(7, 3)]
    corpus = noise_corpus(training, [*lengths, (2000, 4)])
    assert corpus.train.num_frames.tolist() == [50, 75, 100, 125, 150, 2000]
    item = corpus.train[5]
    assert item.mel.shape == (2000, 80) and item.symbols.shape == (4,)
    assert int(item.symbols.min()) >= 1, "0 pads"
    again = noise_corpus(training, lengths).train[2]
    assert torch.equal(again.mel, corpus.train[2].mel)
    assert torch.equal(again.symbols, corpus.train[2].symbols)


def test_segments_are_left_out_where_the_model_has_none(caplog: pytest.LogCaptureFixture) -> None:
    words = ["suite=train", *SMALL_WORDS, "model.attention=softmax"]
    names = names_of(_bench_settings(words))
    assert "teacher_forcing_recompute" in names and "through_time" in names
    assert not any(name.endswith("_segments") for name in names)
    assert "teacher_forcing_segments is left out: trainer.segment_steps" in caplog.text


def test_the_train_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["suite=train", "shapes=[2x12x5,3x24x5]", *SMALL_WORDS, *QUICK]
    assert main(["bench", *words, "--json", "t.json", "--markdown", "t.md"]) == 0
    found = json.loads(Path("t.json").read_text())
    assert [row["form"] for row in found["rows"]] == list(train.KINDS) * 2
    assert all(row["ms_median"] > 0 for row in found["rows"])
    assert found["environment"]["training"] == " ".join(["experiment=demo", *SMALL_WORDS])
    ratios = {(r["case"]["T"], r["form"]): r["time"] for r in found["ratios"]}
    assert ratios[12, "teacher_forcing"] == ratios[24, "teacher_forcing"] == 1
    times = {(r["case"]["T"], r["form"]): r["ms_median"] for r in found["rows"]}
    wanted = times[24, "professor_forcing"] / times[24, "teacher_forcing"]
    assert ratios[24, "professor_forcing"] == pytest.approx(wanted, rel=1e-3)
    assert "| form | B=2 T=12 | B=3 T=24 |" in Path("t.md").read_text()


def test_the_epoch_command_gives_overrides_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(epoch, "STEPS_LASTING", (1, 2, 4))
    words = ["suite=epoch", "shapes=[2x12x5]", "budget=0.2", "max_uses=3", *SMALL_WORDS, *QUICK]
    assert main(["bench", *words, "--json", "e.json", "--markdown", "e.md"]) == 0
    found = json.loads(Path("e.json").read_text())
    rows = {row["form"]: row["ms_median"] for row in found["rows"]}
    assert list(rows) == [
        "teacher_forcing", "professor_forcing", "generate_2", "generate_4", "generate_8",
        "generate_64",
    ]  # fmt: skip
    best = found["recommended"]
    for pair in found["grid"]:
        step = rows["teacher_forcing"] + (rows["professor_forcing"] - rows["teacher_forcing"]) / 2
        step += rows[f"generate_{pair['pool_size']}"] / pair["every"]
        assert pair["ms_a_step"] == pytest.approx(step, rel=1e-3)
        assert pair["uses"] == pytest.approx(pair["every"] / pair["pool_size"])
        assert pair["every"] % 2 == 0 and pair["mean_staleness"] == (pair["every"] - 2) / 2
    assert {**best, "overrides": None} in [{**pair, "overrides": None} for pair in found["grid"]]
    assert best["generating"] <= 0.2
    printed = capfd.readouterr().out
    said = f"recommended: {best['overrides']}"
    assert said in printed and said in Path("e.md").read_text()
    pasted = _bench_settings(["suite=train", *best["overrides"].split()])
    assert isinstance(pasted, TrainingBenchConfig)
    freerun = pasted.training.freerun
    assert (freerun.every, freerun.pool_size) == (best["every"], best["pool_size"])


def test_the_pools_are_what_steps_use_and_what_is_set() -> None:
    names = names_of(_bench_settings(["suite=epoch"]))
    assert names[2:] == [f"generate_{4 * n}" for n in (1, 2, 4, 8, 16, 32, 64)]
    words = ["suite=epoch", "shapes=[3x20x5]", "freerun.batch_size=null", "freerun.pool_size=50"]
    names = names_of(_bench_settings([*words, "trainer.accumulate=2"]))
    assert names[2:8] == [f"generate_{n}" for n in (2, 4, 8, 16, 32, 50)]


def rows_of(times: dict[str, float]) -> list[Row]:
    case = {"B": 8, "T": 100, "S": 10}
    return [Row("epoch", case, name, value, 0.0, None, None) for name, value in times.items()]


def test_the_advice_tells_what_the_settings_cost_and_what_cannot_be() -> None:
    words = ["suite=epoch", "freerun.every=100", "freerun.pool_size=64", "freerun.batch_size=4"]
    words += ["method.interval=1"]
    settings = _bench_settings(words)
    rows = rows_of({"teacher_forcing": 100, "professor_forcing": 190, "generate_64": 100})
    derived = epoch.EpochSuite().derive(rows, settings)
    assert "recommended: freerun.every=16 freerun.pool_size=64" in derived.advice
    assert "each sample used 1x, 7.5 steps stale on average, 15 at most" in derived.advice
    assert "as set:      freerun.every=100 freerun.pool_size=64" in derived.advice
    slow = rows_of({"teacher_forcing": 100, "professor_forcing": 190, "generate_16": 1000})
    derived = epoch.EpochSuite().derive(slow, settings)
    assert "no G here keeps uses within 1 and generating within 5%" in derived.advice
    assert "as set" not in derived.advice, "64 was not measured"


def test_every_way_to_step_sees_the_same_batches(training: TrainConfig) -> None:
    corpus = noise_corpus(training, spread_lengths(12, 5, 6))
    seen: dict[bool, list[list[int]]] = {False: [], True: []}
    steps = TrainingSteps(training, corpus, CPU)
    real = steps.batch

    def record(positions):  # type: ignore[no-untyped-def]
        seen[current].append(list(positions))
        return real(positions)

    steps.batch = record  # type: ignore[method-assign]
    for current in (False, True):
        run = epoch._stepping(steps, StepKind(Free.pool if current else Free.none))
        seen[current].clear()
        for _ in range(4):
            run()
    assert seen[False] == seen[True] and len(seen[True]) == 4
    assert sorted(i for batch in seen[True][:3] for i in batch) == list(range(6))
    assert seen[True][3] == seen[True][0], "an epoch starts over"


def test_lengths_come_from_the_corpus_that_is_named(
    training: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = noise_corpus(training, [(20, 4), (31, 7)])
    monkeypatch.setattr(epoch, "load_corpus", lambda *_: corpus)
    settings = TrainingBenchConfig(suite="epoch", training=training, from_corpus=True)
    (case,) = epoch.SUITE.cases(settings)
    assert case == {"B": 2, "T": 26, "S": 6}
    assert epoch._corpus_of(case, settings) is corpus
    tiny = epoch._corpus_of(epoch.SUITE.warmup_case(case), settings)
    assert tiny is not corpus and tiny.train.num_frames.max() <= 24


def test_training_has_one_type(training: TrainConfig) -> None:
    settings = TrainingBenchConfig(suite="train", training=training, dtype=BenchDtype.float16)
    with pytest.raises(UserError, match="training runs in float32"):
        find_suite("train").cases(settings)


def test_the_words_of_the_docs_are_overrides() -> None:
    text = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
    for found in re.findall(r"freerun\.every=\d+ freerun\.pool_size=\d+", text):
        assert _bench_settings(["suite=epoch", *found.split()])
