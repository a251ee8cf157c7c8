"""Texts that nobody recorded: the beginning of one utterance and the end of another, or both whole.

A corpus has the same few texts to speak for ever. Met between two words, they make as many new ones
as there are pairs, each with a recording of its own, so that an expert has something to say on it.
Where in a recording a word begins is read off the model's own attention, teacher-forced. Joined
whole, they make as many long ones, of which a corpus has the fewest.

Shapes: B batch, S symbols, T mel frames, M mel channels, R reduction factor, U decoder steps,
G guided heads, W words.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from profforce.data.batch import Item, collate
from profforce.data.dataset import MelDataset
from profforce.models.tts import TTSModel
from profforce.nn.modes import evaluating
from profforce.nn.noise import PrenetNoise
from profforce.training.passes import teacher_forced

AT_ONCE = 16
"""Utterances of one teacher-forced pass."""
MOST_ASTRAY = 0.05
"""Share of an utterance's attention on the wrong side of a cut; beyond it the cut is not made.
With trained models it is below that (0.005 or less in the median, 0.03 at most of 99 %), with
untrained ones 0.1 to 0.3 in the median."""


class Splice(NamedTuple):
    """What is said of two utterances of a corpus."""

    first: int
    """Position of the one that begins."""
    symbols: int
    """Of the first, how many are said."""
    frames: int
    """And their mel frames."""
    second: int
    """Position of the one that ends."""
    from_symbol: int
    """The first of the second's that is said; 0 if it is joined whole."""
    from_frame: int


class Words(NamedTuple):
    """Where the words of a recording begin, but for its first."""

    symbols: Tensor
    """``[W]`` int64."""
    frames: Tensor
    """``[W]`` int64, mel frames, above 0."""


def spliced(dataset: MelDataset, found: Splice, gap: int, mel: Tensor | None = None) -> Item:
    """Symbols of a splice with ``mel [T, M]``, its recordings' when not given.

    Its index and speaker are the first's; its text names both, whole. Where both are said whole,
    the symbol ``gap`` is between them.
    """
    if mel is None:
        begins, ends = dataset[found.first].mel, dataset[found.second].mel
        mel = torch.cat([begins[: found.frames], ends[found.from_frame :]])
    first, second = dataset.item(found.first, mel), dataset.item(found.second, mel)
    return replace(
        first,
        id=f"{first.id}+{second.id}",
        text=f"{first.text} + {second.text}",
        symbols=torch.cat(
            [
                first.symbols[: found.symbols],
                first.symbols.new_full((int(found.from_symbol == 0),), gap),
                second.symbols[found.from_symbol :],
            ]
        ),
    )


def partners(speakers: Sequence[int], order: Sequence[int]) -> list[int | None]:
    """For each utterance the next one of its speaker in ``order``, in a circle; None if alone."""
    found: list[int | None] = [None] * len(speakers)
    rounds: dict[int, list[int]] = {}
    for row in order:
        rounds.setdefault(speakers[row], []).append(row)
    for circle in rounds.values():
        if len(circle) > 1:
            for row, other in zip(circle, circle[1:] + circle[:1], strict=True):
                found[row] = other
    return found


def splice(
    first: tuple[int, Words],
    second: tuple[int, Words, int],
    longest: int,
    source: torch.Generator,
) -> Splice | None:
    """One of the ways to meet between two words in at most ``longest`` frames, if there is any.

    Args:
        first: position in the dataset, and its words.
        second: the same, and its mel frames.
        longest: mel frames.
        source: draws.
    """
    (one, begins), (other, ends, frames) = first, second
    if not len(begins.symbols):
        return None
    cut = int(torch.randint(len(begins.symbols), (), generator=source))
    kept = int(begins.frames[cut])
    fit = (kept + frames - ends.frames <= longest).nonzero()[:, 0]
    if not len(fit):
        return None
    on = int(fit[int(torch.randint(len(fit), (), generator=source))])
    return Splice(
        *(one, int(begins.symbols[cut]), kept),
        *(other, int(ends.symbols[on]), int(ends.frames[on])),
    )


def join(dataset: MelDataset, first: int, second: int, longest: int) -> Splice | None:
    """Two utterances, one after the other, unless they are more than ``longest`` mel frames."""
    frames = int(dataset.num_frames[first])
    if frames + int(dataset.num_frames[second]) > longest:
        return None
    return Splice(first, int(dataset.num_symbols[first]) - 1, frames, second, 0, 0)


@contextmanager
def _in_one_piece(model: TTSModel) -> Iterator[None]:
    """Without segments, which draw from the random numbers of the whole process."""
    steps, model.segment_steps = model.segment_steps, None
    try:
        yield
    finally:
        model.segment_steps = steps


def words_of(
    model: TTSModel,
    items: Sequence[Item],
    gap: int,
    noise: PrenetNoise,
    device: torch.device,
) -> list[Words]:
    """Where the words of each utterance begin. Draws no random number.

    Args:
        model: whose teacher-forced attention tells; not changed.
        items: utterances of the corpus.
        gap: the symbol between words.
        noise: the prenet's, of one utterance for each item.
        device: of the model.
    """
    found = [Words(torch.empty(0), torch.empty(0))] * len(items)
    order = sorted(range(len(items)), key=lambda k: len(items[k].mel))
    factor = model.config.reduction_factor
    for first in range(0, len(order), AT_ONCE):
        rows = order[first : first + AT_ONCE]
        batch = collate([items[row] for row in rows]).to(device)
        own = noise.select(torch.tensor(rows, device=device))
        with torch.no_grad(), evaluating(model), _in_one_piece(model):
            out = teacher_forced(model, batch, own, refine=False)
        for row, alignment in zip(rows, out.alignments.mean(1).cpu(), strict=True):
            item = items[row]
            steps = -(-len(item.mel) // factor)
            found[row] = words_at(alignment[:steps, : len(item.symbols)], item.symbols, gap, factor)
    return found


def words_at(alignment: Tensor, symbols: Tensor, gap: int, factor: int) -> Words:
    """Where attention comes to each word.

    A word is come to at the step which leaves the least attention on the wrong side, of what is
    behind it before and of what is before it afterwards.

    Args:
        alignment: ``[U, S]``, weights, each step's adding up to 1.
        symbols: ``[S]`` int64, the last being end-of-sentence.
        gap: the symbol between words.
        factor: R.
    """
    spoken = (symbols[:-1] != gap).nonzero()[:, 0]
    starts = spoken[1:][symbols[spoken[1:] - 1] == gap]
    behind = alignment.flip(1).cumsum(1).flip(1)[:, starts]  # [U, W]
    too_early = torch.cat([behind.new_zeros(1, len(starts)), behind.cumsum(0)])
    too_late = (1 - behind).flip(0).cumsum(0).flip(0)
    wrong = too_early + torch.cat([too_late, behind.new_zeros(1, len(starts))])
    least, step = wrong.min(0)
    within = (step > 0) & (step < len(alignment)) & (least <= MOST_ASTRAY * len(alignment))
    return Words(starts[within], step[within] * factor)
