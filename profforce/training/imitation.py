"""What an expert would say next after each prefix that the model made itself.

Imitation learning on the states that the learner gets into (DAgger: Ross et al. 2011,
arXiv:1011.0686): the recording of the same text, laid on the self-made frames by dynamic time
warping, tells how far each prefix has come; what follows there is the target of the next step.
After a word that was skipped the expert goes on behind it, just before it he still says it; whoever
babbles on the spot is always told the same next frames; whoever stops early is told to speak on.

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
UNSAID = 1.5
"""Price of a recorded frame that is still to be said, in distances of a self-made frame, in the
median, to the recorded frame that it is most like: what is said alike is cheaper than that."""
SURELY_UNSAID = 4
"""Frames' worth of that which an early end must save. Cut at a random place, free runs of asterisk
prompts save 14 or more (2.5 where 5 % of a prompt were cut off); whole ones at most 1."""


@dataclass(frozen=True)
class Expert:
    """Recordings of what a pool batch says, and where each decoder step should go on in them."""

    real: Batch
    """The same utterances with their recorded mels ``[B, T2, M]``."""
    next_frames: Tensor
    """``[B, U]`` int64: the recorded frame that should come next; the last one after the end."""


def next_frames(made: Tensor, real: Tensor, reduction_factor: int) -> Tensor:
    """Where to go on after each self-made prefix.

    A prefix stands at the recorded frame that its last frame is most like, of those it is laid on:
    where speech was skipped, one frame beside the gap is laid on all of it. What a run that
    stopped early did not come to is laid on nothing.

    Args:
        made: ``[T1, M]``, T1 >= 1; where it is not a number, it is laid as zero.
        real: ``[T2, M]``, T2 >= 1; both in the same units, deviations of the training mels.
        reduction_factor: R.

    Returns:
        ``[U]`` int64 in [0, T2 - 1].
    """
    unlike = torch.cdist(made.nan_to_num().double(), real.double(), p=1)
    path = _laid(unlike)
    order = unlike[path[:, 0], path[:, 1]].argsort(descending=True, stable=True)
    place = torch.zeros(len(made), dtype=torch.int64)
    place[path[order, 0]] = path[order, 1]  # of several the last written stays: the most alike
    ends = place[reduction_factor - 1 : len(made) - 1 : reduction_factor]
    return F.pad(ends + 1, (1, 0)).clamp(max=len(real) - 1)


def _laid(unlike: Tensor) -> Tensor:
    """Distances ``[T1, T2]`` -> ``[P, 2]`` int64, the frames that fit best, from first to last.

    Of a run that is shorter than the recording the path need not come to the last recorded frame:
    laid on all of it, a run that stopped early would seem to have said what it did not, and its
    end would seem to be in place.
    """
    distances = unlike.numpy()
    num_made, num_real = distances.shape
    costs, backwards = librosa.sequence.dtw(C=distances)
    if num_made < num_real:
        price = UNSAID * float(np.median(distances.min(axis=1)))
        ending = costs[-1] + price * np.arange(num_real)[::-1]
        end = int(ending.argmin())
        if ending[-1] - ending[end] > SURELY_UNSAID * price:
            _, backwards = librosa.sequence.dtw(C=distances[:, : end + 1])
    return torch.from_numpy(backwards[::-1].copy())


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
