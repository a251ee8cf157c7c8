"""Start a run from the weights of another: all that fits, embeddings by symbol and by speaker."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profforce.config import MelConfig
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.models.checkpoint import META, check_whole, find_checkpoint, load_meta, load_model
from profforce.models.tts import TTSModel

MOST_NAMED = 6
"""Weights named in the report."""
SYMBOLS, SPEAKERS = "embedding.weight", "speaker.weight"
log = logging.getLogger(__name__)


@dataclass
class Taken:
    """What of a model came from another."""

    tensors: int = 0
    notes: list[str] = field(default_factory=list)
    """Of tables taken in part, and of what was not taken."""
    fresh: list[str] = field(default_factory=list)


def init_from(model: TTSModel, corpus: Corpus, source: Path) -> None:
    """Load the weights of ``source`` into ``model`` as far as they fit; says so in one log line.

    Rows of the embedding are taken by symbol, those of speakers by name; the normalisation of the
    mels belongs to the weights and is taken. Another reduction factor leaves the frame-sized layers
    fresh. Optimizers, schedule and counters begin anew.

    Args:
        model: just built; changed in place.
        corpus: gives the alphabet, the speakers and the mel definition of the new run.
        source: a run folder, of which the last checkpoint is taken, or a checkpoint's folder.

    Raises:
        UserError: no such checkpoint, a damaged one, another mel definition, another kind of
            model, or another width.
    """
    path = source if (source / META).is_file() else find_checkpoint(source, "last")
    _check_mel(load_meta(path), corpus.mel, path)
    check_whole(path)
    other, meta = load_model(path, model.mel_mean.device)
    if other.config.kind != model.config.kind:
        raise UserError(
            "the checkpoint's model is of another kind, so that hardly a weight fits",
            where=f"init_from={path}",
            got=f"model.kind={other.config.kind}",
            expected=f"model.kind={model.config.kind}",
            remedy=f"set model.kind={other.config.kind}, or train from nothing",
        )
    if other.config.width != model.config.width:
        raise UserError(
            "the checkpoint's model has another width, so that hardly a weight fits",
            where=f"init_from={path}",
            got=f"width {other.config.width}",
            expected=f"width {model.config.width}",
            remedy=f"set model.width={other.config.width}",
        )
    rows = {
        SYMBOLS: (meta["tokenizer"]["symbols"], corpus.tokenizer.symbols, "symbols"),
        SPEAKERS: (meta["speakers"], corpus.speakers, "speakers"),
    }
    taken = _take(model, other.state_dict(), rows)
    notes = [*taken.notes, *([f"fresh: {_some(taken.fresh)}"] if taken.fresh else [])]
    whole = len(model.state_dict())
    log.info("%s", "; ".join([f"{taken.tensors} of {whole} tensors from {path}", *notes]))


def _check_mel(meta: Mapping[str, Any], mel: MelConfig, path: Path) -> None:
    try:
        differences = MelConfig(**meta["mel"]).differences(mel)
    except (KeyError, TypeError, ValueError) as err:
        raise UserError("checkpoint cannot be loaded", where=path, got=str(err)) from err
    if differences:
        raise UserError(
            "the checkpoint speaks another mel definition",
            where=f"init_from={path}",
            got=differences,
            expected="the same mel settings on both sides",
            remedy="set mel.* as there, or train from nothing",
        )


def _take(
    model: TTSModel,
    there: Mapping[str, Tensor],
    rows: Mapping[str, tuple[Sequence[str], Sequence[str], str]],
) -> Taken:
    """Copy what fits of ``there`` into the state of ``model``."""
    taken = Taken()
    here = model.state_dict()  # the live storage
    for name, target in here.items():
        value = there.get(name)
        if value is not None and name in rows:
            old, new, what = rows[name]
            number = _take_rows(target, value, old, new)
            if number < len(new) or len(old) != len(new):
                taken.notes.append(f"{number} of {len(new)} {what} known there")
            taken.tensors += number > 0
        elif value is not None and value.shape == target.shape:
            target.copy_(value)
            taken.tensors += 1
        else:
            shape = "none" if value is None else list(value.shape)
            taken.fresh.append(f"{name} {shape} there, {list(target.shape)} here")
    left = [name for name in there if name not in here]
    if left:
        taken.notes.append(f"left out: {_some(left)}")
    return taken


def _take_rows(target: Tensor, value: Tensor, old: Sequence[str], new: Sequence[str]) -> int:
    """Rows of a table by the names of its entries; 0 where the width is another."""
    places = {name: place for place, name in enumerate(old)}
    pairs = [(row, places[name]) for row, name in enumerate(new) if name in places]
    if not pairs or value.shape[1:] != target.shape[1:]:
        return 0
    into, out_of = torch.tensor(pairs, device=target.device).T
    target[into] = value[out_of]
    return len(pairs)


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
