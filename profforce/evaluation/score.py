"""One figure of ``profforce evaluate`` as the score by which training keeps its best checkpoints.

T mel frames, M mel channels, N samples.
"""

import logging
import math

import torch
from torch import Tensor

from profforce.audio.vocoder import VocoderStream
from profforce.config import BestBy, EvaluateConfig, MelConfig, TrainConfig
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.evaluation.evaluate import judge_speech
from profforce.evaluation.figures import FIGURES, mean_over
from profforce.evaluation.material import held_out_of
from profforce.models.checkpoint import checkpoint_meta
from profforce.models.tts import TTSModel
from profforce.sampling.synthesizer import Synthesizer
from profforce.training.gap import Score, Scorer

log = logging.getLogger(__name__)

TIE_BREAKER = 1e-3
"""What a unit of mel distance counts beside the figure: shares of a few texts are often equal."""


class Silent:
    """A vocoder for those who do not listen."""

    def __init__(self, mel: MelConfig) -> None:
        self.mel = mel

    def __call__(self, mel: Tensor) -> Tensor:
        """Zeros ``[N]`` for ``mel [T, M]``."""
        return mel.new_zeros(len(mel) * self.mel.hop_length)

    def stream(self) -> VocoderStream:
        """Never asked for: what is judged is whole."""
        raise NotImplementedError


class FreeRunScore:
    """Speaks a few held-out texts, always the same ones, and judges them as evaluate does."""

    def __init__(self, config: TrainConfig, corpus: Corpus) -> None:
        trainer = config.trainer
        self.by, self.corpus = trainer.best_by, corpus
        self.material = held_out_of(corpus, config.data, trainer.num_score_sentences)
        self.settings = EvaluateConfig(
            stop_threshold=config.freerun.stop_threshold, pitch=False, pictures=False
        )
        figure = next(figure for figure in FIGURES if figure.key == self.by)
        self.sign = 1 if figure.better == "lower" else -1

    @torch.no_grad()
    def __call__(self, model: TTSModel) -> Score:
        """The score of ``model``, lower is better, and every figure that was measured.

        The score is NaN where the model says values that are not finite.
        """
        corpus = self.corpus
        meta = checkpoint_meta(model, corpus.mel, corpus.tokenizer, corpus.speakers)
        synthesizer = Synthesizer(model, meta, self.settings, Silent(corpus.mel))
        try:
            rows = judge_speech(synthesizer, self.material, pitch=False).rows
        except UserError as err:
            log.warning("no score by %s: %s", self.by, err)
            return Score(math.nan, {})
        means = {figure.key: mean_over(rows, figure.key).mean for figure in FIGURES}
        means.pop("real_time_factor")
        value = self.sign * means[self.by] + TIE_BREAKER * means["dtw_free"]
        return Score(value, {f"score/{k}": v for k, v in means.items() if math.isfinite(v)})


def scorer_of(config: TrainConfig, corpus: Corpus) -> Scorer | None:
    """What scores checkpoints beside the gap meter; None where the meter itself does."""
    if config.trainer.best_by == BestBy.gap:
        return None
    return FreeRunScore(config, corpus)
