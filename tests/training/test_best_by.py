"""The best checkpoints are kept by a figure of evaluate, the same one; nothing else changes."""

import logging
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from profforce.config import BestBy, EvaluateConfig, TrainConfig, TrainerConfig
from profforce.data.corpus import Corpus
from profforce.evaluation.evaluate import evaluate
from profforce.evaluation.figures import FIGURES, mean_over
from profforce.evaluation.material import held_out
from profforce.evaluation.score import TIE_BREAKER, FreeRunScore, scorer_of
from profforce.models.checkpoint import find_checkpoint, load_meta, ranked
from profforce.models.transformer import TransformerTTS
from profforce.training.gap import Score
from profforce.training.run import train
from profforce.training.state import TrainState
from tests.training.test_loop import StopAt, metrics, same_checkpoint


def scored(config: TrainConfig, best_by: BestBy, **trainer: Any) -> TrainConfig:
    changes = {"steps": 4, "checkpoint_every": 2, "evaluate_every": 9, "num_score_sentences": 3}
    changes |= {"best_by": best_by, **trainer}
    return replace(config, trainer=replace(config.trainer, **changes))


@pytest.mark.parametrize("best_by", [BestBy.failed, BestBy.focus])
def test_the_score_is_the_figure_of_evaluate(
    config: TrainConfig, run_dir: Path, best_by: BestBy
) -> None:
    config = scored(config, best_by)
    train(config, run_dir, make_scorer=scorer_of)
    figure = next(figure for figure in FIGURES if figure.key == best_by)
    for step in (2, 4):
        settings = EvaluateConfig(
            checkpoint=f"step-{step}",
            stop_threshold=config.freerun.stop_threshold,
            griffin_lim_iterations=1,
            pitch=False,
        )
        rows = evaluate(run_dir, held_out(config, 3), settings).rows
        own, distance = (mean_over(rows, key).mean for key in (best_by, "dtw_free"))
        meta = load_meta(run_dir / f"checkpoints/step-{step}")
        sign = 1 if figure.better == "lower" else -1
        assert meta["score"] == pytest.approx(sign * own + TIE_BREAKER * distance, abs=1e-6)
        assert meta["score_by"] == best_by
    written = [row for row in metrics(run_dir) if "score/best_by" in row]
    assert [row["step"] for row in written] == [2, 4]
    assert {"score/failed", "score/dtw_free", "score/unaligned"} <= set(written[0])


def test_scoring_changes_no_weight_and_a_resumed_run_is_the_same_to_the_bit(
    config: TrainConfig, run_dir: Path, tmp_path: Path
) -> None:
    by_gap, by_failures = (scored(config, by, steps=6) for by in (BestBy.gap, BestBy.failed))
    train(by_gap, tmp_path / "gap", make_scorer=scorer_of)
    train(by_failures, tmp_path / "whole", make_scorer=scorer_of)
    weights = [
        (tmp_path / name / "checkpoints/step-6/model.safetensors").read_bytes()
        for name in ("gap", "whole")
    ]
    assert weights[0] == weights[1]
    with pytest.raises(SystemExit):
        train(by_failures, run_dir, report=StopAt(3, signal.SIGTERM), make_scorer=scorer_of)
    train(by_failures, run_dir, resume=True, make_scorer=scorer_of)
    same_checkpoint(*(run / "checkpoints/step-6" for run in (run_dir, tmp_path / "whole")))


def test_the_best_is_kept_by_it(config: TrainConfig, run_dir: Path) -> None:
    values = {1: 3.0, 2: 0.5, 3: math.nan, 4: 2.0, 5: 1.0}

    def make(config: TrainConfig, corpus: Corpus) -> Any:
        steps = iter(values)
        return lambda model: Score(values[next(steps)], {})

    changed = scored(config, BestBy.failed, steps=5, checkpoint_every=1, keep_last=1, keep_best=2)
    assert train(changed, run_dir, make_scorer=make) == 1.0
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"step-2", "step-5"}
    assert find_checkpoint(run_dir, "best").name == "step-2"


def test_scores_of_another_kind_are_not_compared() -> None:
    found: list[tuple[int, dict[str, Any]]] = [
        (1, {"score": 0.1}),  # from before there were kinds: the gap
        (2, {"score": 0.2, "score_by": "gap"}),
        (3, {"score": 0.9, "score_by": "failed"}),
        (4, {"score": 0.8, "score_by": "failed"}),
    ]
    assert [step for step, _ in ranked(found)] == [4, 3]
    assert [step for step, _ in ranked(found[:2])] == [1, 2]


def test_a_model_that_says_nothing_finite_has_no_score(
    config: TrainConfig, corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    config = scored(config, BestBy.failed)
    model: TransformerTTS = TrainState(config, corpus, torch.device("cpu")).model
    score = FreeRunScore(config, corpus)
    assert math.isfinite(score(model).value) and score(model) == score(model)
    with torch.no_grad():
        model.mel_out.bias.fill_(math.nan)
    with caplog.at_level(logging.WARNING):
        assert math.isnan(score(model).value)
    assert "no score by failed" in caplog.text


def test_every_kind_is_a_figure_and_the_gap_needs_no_scorer(
    config: TrainConfig, corpus: Corpus, run_dir: Path
) -> None:
    assert {str(by) for by in BestBy} - {"gap"} < {figure.key for figure in FIGURES}
    assert scorer_of(scored(config, BestBy.gap), corpus) is None
    with pytest.raises(ValueError, match=r"trainer\.best_by=failed needs make_scorer"):
        train(scored(config, BestBy.failed), run_dir)
    with pytest.raises(ValueError, match=r"trainer\.num_score_sentences must be >= 1"):
        TrainerConfig(num_score_sentences=0)
