"""Checkpoints: written aside and renamed, loadable without pickle, last and best kept.

``checkpoints/step-N/model.safetensors`` holds the weights one samples with (averaged when
``trainer.ema_decay`` > 0); ``train_state.pt`` what a resume needs beside; ``meta.json`` what the
weights mean: sizes, mel definition, alphabet, reduction factor, speakers, score; and the digests of
the other two files, by which damage is known. Reading never changes a folder; a resume may.
"""

from profforce.models.checkpoint.kept import find_checkpoint, list_checkpoints, prune, ranked
from profforce.models.checkpoint.parts import (
    DIGESTS,
    META,
    WEIGHTS,
    DamagedCheckpointError,
    SaveError,
    reason,
)
from profforce.models.checkpoint.read import load_meta, load_model, load_train_state
from profforce.models.checkpoint.whole import check_whole, recover
from profforce.models.checkpoint.write import checkpoint_meta, save_checkpoint

__all__ = [
    "DIGESTS",
    "META",
    "WEIGHTS",
    "DamagedCheckpointError",
    "SaveError",
    "check_whole",
    "checkpoint_meta",
    "find_checkpoint",
    "list_checkpoints",
    "load_meta",
    "load_model",
    "load_train_state",
    "prune",
    "ranked",
    "reason",
    "recover",
    "save_checkpoint",
]
