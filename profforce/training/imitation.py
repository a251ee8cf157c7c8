"""What an expert would say next after each prefix that the model made itself.

Imitation learning on the states that the learner gets into (DAgger: Ross et al. 2011,
arXiv:1011.0686): the recording of the same text, laid on the self-made frames by dynamic time
warping, tells how far each prefix has come; what follows there is the target of the next step.
Just before a word that is skipped the expert still says it, soon after it he goes on behind it;
whoever babbles on the spot is always told the same next frames; whoever stops early is told to
speak on.

Shapes: B batch, T1 self-made and T2 recorded frames, R reduction factor, U = ceil(T1 / R) decoder
steps, M mel channels, G guided heads, S symbols.
"""

from dataclasses import dataclass

import librosa
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from profforce.data.batch import Batch
from profforce.models.losses import mel_loss, stop_loss
from profforce.models.tts import TeacherForced, TTSModel
from profforce.nn.masks import length_mask, masked_mean

UNSEEN = 1e-5
"""Added to attention weights before their logarithm."""
ALIKE = 2.0
"""Where frames are unlike for good, in distances of a self-made frame, in the median, to the
recorded frame that it is most like. How unlike they are beyond that says nothing: who says a word
badly has said it."""
LATER = 0.9
"""Weight of what came after a prefix when it is asked how far it has come: docs/experiments.md,
"what the expert sees"."""


@dataclass(frozen=True)
class Expert:
    """Recordings of what a pool batch says, and where each decoder step should go on in them."""

    real: Batch
    """The same utterances with their recorded mels ``[B, T2, M]``."""
    next_frames: Tensor
    """``[B, U]`` int64: the recorded frame that should come next; the last one after the end."""


def next_frames(made: Tensor, real: Tensor, reduction_factor: int, later: float = LATER) -> Tensor:
    """Where to go on after each self-made prefix.

    A prefix has come to where the warping that passes there costs least, before and after. What
    comes after counts for less: in hindsight a word that is skipped is nowhere to be found, and as
    good as any place for it is one before it was due, so that the skip would seem right when
    it was made. By the prefix alone, whoever said a word badly would seem not to have said it.

    Args:
        made: ``[T1, M]``, T1 >= 1; where it is not a number, it is laid as zero.
        real: ``[T2, M]``, T2 >= 1; both in the same units, deviations of the training mels.
        reduction_factor: R.
        later: 0 judges by the prefix alone, 1 by the whole run alike.

    Returns:
        ``[U]`` int64 in [0, T2 - 1].
    """
    unlike = torch.cdist(made.nan_to_num().double(), real.double(), p=1).numpy()
    unlike = unlike.clip(max=ALIKE * float(np.median(unlike.min(axis=1))) or np.inf)
    before = librosa.sequence.dtw(C=unlike, backtrack=False)
    after = librosa.sequence.dtw(C=unlike[::-1, ::-1], backtrack=False)[::-1, ::-1] - unlike
    place = torch.from_numpy((before + later * after).argmin(axis=1))
    ends = place[reduction_factor - 1 : len(made) - 1 : reduction_factor]
    return F.pad(ends + 1, (1, 0)).clamp(max=len(real) - 1)


def imitation_loss(
    model: TTSModel,
    out: TeacherForced,
    made_lengths: Tensor,
    expert: Expert,
    *,
    stop_weight: float,
    stop_positive_weight: float,
) -> dict[str, Tensor]:
    """The terms ``mel``, ``stop`` and, of both together, ``total``: scalars.

    Args:
        model: whose pass it is.
        out: over the self-made frames ``[B, T1, M]``, without the postnet.
        made_lengths: ``[B]``, valid frames of T1.
        expert: of the same batch.
        stop_weight: of the stop term in the total.
        stop_positive_weight: of frames that should be the last, against the others.
    """
    frames, factor = out.mel_before.shape[1], model.config.reduction_factor
    within = torch.arange(factor, device=expert.next_frames.device)
    wanted = (expert.next_frames[..., None] + within).flatten(1)[:, :frames]
    last = (expert.real.mel_lengths - 1)[:, None]
    places = torch.minimum(wanted, last)[..., None].expand(-1, -1, expert.real.mel.shape[2])
    target = expert.real.mel.gather(1, places)
    mel = mel_loss(out.mel_before, target, made_lengths, model.mel_std)
    stop = stop_loss(out.stop_logits, made_lengths, stop_positive_weight, wanted >= last)
    return {"total": mel + stop_weight * stop, "mel": mel, "stop": stop}


def attention_loss(
    out: TeacherForced, recorded: TeacherForced, made_lengths: Tensor, expert: Expert, factor: int
) -> Tensor:
    """Cross-entropy of attention after self-made frames to that after recorded ones, a scalar.

    Args:
        out: pass over the self-made frames, alignments ``[B, G, U, S]``.
        recorded: pass over ``expert.real``; gets no gradient.
        made_lengths: ``[B]``, valid frames of ``out``.
        expert: of the same batch.
        factor: R.
    """
    known = recorded.alignments.detach()
    rows = (expert.next_frames // factor).clamp(max=known.shape[2] - 1)
    wanted = known.gather(2, rows[:, None, :, None].expand(-1, known.shape[1], -1, known.shape[3]))
    each = -(wanted * (out.alignments + UNSEEN).log()).sum(-1)
    live = length_mask(-(-made_lengths // factor), each.shape[2])[:, None]
    return masked_mean(each, live)
