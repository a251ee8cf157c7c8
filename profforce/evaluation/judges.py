"""The judges by their names. Each loads its package and weights when it is made, or says what to
install.
"""

from profforce.config import EvaluateConfig, JudgeName
from profforce.evaluation import likeness, listening, quality, voice
from profforce.evaluation.judging import Judge, OfSentences


def judges_of(config: EvaluateConfig) -> list[Judge]:
    """Those that ``config`` asks for; raises :class:`UserError` for packages that are missing."""
    return [_judge(name, config.num_threads) for name in config.all_judges]


def _judge(name: JudgeName, num_threads: int | None) -> Judge:
    if name is JudgeName.whisper:
        return listening.Hearing(listening.Whisper(num_threads))
    if name is JudgeName.distillmos:
        return OfSentences(quality.DistillMos())
    if name is JudgeName.dnsmos:
        return OfSentences(quality.DnsMos(num_threads))
    return OfSentences(likeness.Likeness(voice.VoiceEncoder.pretrained()))
