"""Everything that training changes, and its way into and out of a checkpoint."""

import logging
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from profforce.config import MethodName, ModelConfig, ModelKind, TrainConfig
from profforce.data.batch import collate
from profforce.data.corpus import Corpus
from profforce.errors import UserError
from profforce.kernels.ops import describe as kernel_in_use
from profforce.models.build import build_model
from profforce.models.checkpoint import (
    checkpoint_meta,
    load_meta,
    load_train_state,
    prune,
    save_checkpoint,
)
from profforce.models.discriminator import LengthDiscriminator, build_discriminator
from profforce.models.mirror import Mirror
from profforce.models.segments import check_segments
from profforce.models.through_time import check_through_time
from profforce.models.tts import TTSModel
from profforce.nn.noise import PrenetNoise
from profforce.training.distributed import ALONE, Team
from profforce.training.faults import Skips, check_weights
from profforce.training.gates import Gates
from profforce.training.optim import (
    build_average,
    build_optimizer,
    build_schedule,
    restore_optimizer,
)
from profforce.training.pool import SamplePool, fitting
from profforce.training.precision import LossScale, half_type
from profforce.training.recital import Recital
from profforce.training.seeds import derived_seed, generator
from profforce.training.step import FreeTexts
from profforce.training.transfer import init_from

log = logging.getLogger(__name__)


class TrainState:
    """Models, optimizers, schedules, gates, pool and counters of one run."""

    def __init__(
        self, config: TrainConfig, corpus: Corpus, device: torch.device, team: Team = ALONE
    ) -> None:
        self.team = team
        torch.manual_seed(derived_seed(config.seed, "init", 0))
        self.config, self.corpus, self.device = config, corpus, device
        num_mels, trainer = corpus.mel.num_mels, config.trainer
        self.model = build_model(config.model, len(corpus.tokenizer.symbols), num_mels)
        self.model.to(device)
        self.model.recompute_activations = trainer.recompute_activations
        self.model.segment_steps = trainer.segment_steps
        self.model.autocast = half_type(trainer.precision, device)
        self.scale = LossScale(trainer.precision, device)
        if trainer.segment_steps is not None:
            check_segments(self.model, device)
        if config.method.name == MethodName.through_time:
            check_through_time(self.model)
        self.mirror = Mirror(self.model)
        self.discriminator = build_discriminator(config.discriminator, config.model, num_mels)
        self.discriminator.to(device)
        self.control = LengthDiscriminator(config.discriminator.crop_steps).to(device)
        self.average = build_average(self.model, trainer.ema_decay) if trainer.ema_decay else None
        self.optimizer = build_optimizer(self.model, trainer)
        self.schedule = build_schedule(self.optimizer, trainer)
        self.judges = nn.ModuleList([self.discriminator, self.control])
        self.judge_optimizer = torch.optim.Adam(
            self.judges.parameters(), lr=config.discriminator.lr, betas=(0.5, 0.99), fused=True
        )
        self.gates = Gates(config.method)
        recital = Recital(
            config.freerun,
            corpus.train,
            config.seed,
            gap=corpus.tokenizer.gap,
            imitates=config.method.imitates,
            team=team,
        )
        self.pool = SamplePool(recital)
        self.step = 0
        """Optimizer steps done."""
        self.batches_drawn = 0
        """Batches taken from the corpus by all processes; epoch and position follow from it."""
        self.skips = Skips()
        self.score: float | None = None
        """The last free-running score, lower is better."""

    @property
    def forces(self) -> bool:
        """Whether the coming step trains on behaviour of the model on its own outputs."""
        method = self.config.method
        since = self.step - method.start_step
        active = method.name != MethodName.teacher_forcing and since >= 0
        return active and since % method.interval == 0

    def choose_texts(self, number: int) -> list[int]:
        """Positions in the corpus, drawn without replacement and anew for each ``number``."""
        seed, corpus = self.config.seed, self.corpus.train
        size = self.config.pool_batch_size
        order = torch.randperm(len(corpus), generator=generator(seed, "texts", number))
        if (frames := self.config.pool_max_frames) is not None:
            longest = corpus.num_frames[order[:size].numpy()] * self.config.freerun.max_length_ratio
            size = fitting(longest.tolist(), frames)
        return order[:size].tolist()

    def texts_to_speak(self, positions: list[int], number: int) -> FreeTexts:
        """These texts of the corpus, with the noise of batch ``number``."""
        seed, corpus = self.config.seed, self.corpus.train
        batch = collate([corpus[i] for i in positions]).to(self.device)
        rows = torch.arange(len(batch), device=self.device)
        return FreeTexts(batch, PrenetNoise(derived_seed(seed, "texts-noise", number), rows))

    @property
    def sampling_model(self) -> TTSModel:
        """The weights one samples with: averaged where an average is kept."""
        if self.average is None:
            return self.model
        model = self.average.module
        assert isinstance(model, TTSModel)
        # The average holds its own copy of the buffers, which only the start of a run sets.
        model.set_mel_statistics(self.model.mel_mean, self.model.mel_std)
        return model

    def set_mel_statistics(self) -> None:
        """Take the normalisation from the training set."""
        mean, std = self.corpus.train.mel_statistics()
        self.model.set_mel_statistics(torch.as_tensor(mean), torch.as_tensor(std))

    def begin(self) -> None:
        """What a new run starts from: the normalisation, and the weights of ``init_from`` if set.

        Raises:
            UserError: as :func:`profforce.training.transfer.init_from`.
        """
        self.set_mel_statistics()
        if self.config.init_from is None:
            return
        init_from(self.model, self.corpus, Path(self.config.init_from))
        if self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())

    def share_weights(self) -> None:
        """Let all processes start from those of the first."""
        self.team.share_weights((self.model, self.sampling_model, self.judges))

    def learn(self, told: Tensor | None) -> None:
        """Let the gradients change weights, averages and gates.

        Args:
            told: the discriminator's accuracy in this step, a scalar; None without a forced part.
        """
        self.optimizer.step()
        if told is not None:
            if self.gates.discriminator_open:
                self.judge_optimizer.step()
            self.gates.update(float(told))
        if self.average is not None:
            self.average.update_parameters(self.model)

    def pass_on(self) -> None:
        """To the next step, whether or not this one changed anything."""
        self.optimizer.zero_grad()
        self.judge_optimizer.zero_grad()
        with warnings.catch_warnings():  # PyTorch takes a skipped first step for a wrong order
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)`")
            self.schedule.step()
        self.step += 1

    def save(self, run_dir: Path) -> Path:
        """Write a checkpoint, in one process for all, and remove those no longer wanted.

        Raises:
            DivergedError: if weights are not numbers; then nothing is written.
            SaveError: if the folder takes no more writing.
        """
        check_weights(
            (self.model, self.sampling_model, self.judges), f"step {self.step} of {run_dir}"
        )
        folder, trainer = run_dir / "checkpoints", self.config.trainer
        corpus = self.corpus
        meta = checkpoint_meta(self.model, corpus.mel, corpus.tokenizer, corpus.speakers)
        meta["score"], meta["score_by"] = self.score, str(trainer.best_by)
        weights, state = self.sampling_model.state_dict(), self._state()

        def write() -> Path:
            path = save_checkpoint(folder, self.step, weights, state, meta)
            prune(folder, trainer.keep_last, trainer.keep_best)
            return path

        self.team.require_equal(f"the weights of step {self.step}", checksum(self.model))
        return self.team.from_first(f"saving step {self.step}", write)

    def load(self, checkpoint: Path) -> None:
        """Continue from ``checkpoint`` exactly where it was written.

        Raises:
            UserError: if its mel definition, alphabet or sizes are not those of this run.
        """
        self._check(load_meta(checkpoint), checkpoint)
        state = load_train_state(checkpoint, self.device)
        try:
            self._check_corpus(state, checkpoint)
            self._restore(state)
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as err:
            raise UserError(
                "training state does not fit this run",
                where=checkpoint,
                got=str(err).splitlines()[0],
                remedy="resume with the settings of the run",
            ) from err

    def _check(self, meta: dict[str, Any], checkpoint: Path) -> None:
        now = checkpoint_meta(
            self.model, self.corpus.mel, self.corpus.tokenizer, self.corpus.speakers
        )
        for part in ("mel", "model", "tokenizer", "speakers"):
            kept = meta.get(part)
            if part == "model" and isinstance(kept, dict):  # what came later was at its default
                kept = asdict(ModelConfig()) | kept
            if kept != now[part]:
                raise UserError(
                    f"the checkpoint's {part} settings differ from this run's",
                    where=checkpoint,
                    got=_difference(kept, now[part]),
                    expected="the settings the run was started with",
                    remedy="leave them out when resuming, or start a new run",
                )

    def _check_corpus(self, state: dict[str, Any], checkpoint: Path) -> None:
        """Sampler position and pool mean nothing for other utterances."""
        kept = state.get("corpus")  # runs from before it was written down have none
        if kept is not None and kept != self.corpus.fingerprint():
            raise UserError(
                "the corpus differs from the run's",
                where=checkpoint,
                got=f"{len(self.corpus.train)} + {len(self.corpus.valid)} utterances",
                expected="the texts and sides of the run's own corpus",
                remedy="leave data settings out when resuming, or start a new run",
            )

    def _parts(self) -> dict[str, Any]:
        parts = {
            "model": self.model,
            "discriminator": self.discriminator,
            "control": self.control,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "judge_optimizer": self.judge_optimizer,
            "pool": self.pool,
        }
        return parts if self.average is None else {**parts, "average": self.average}

    def _state(self) -> dict[str, Any]:
        return {
            **{name: part.state_dict() for name, part in self._parts().items()},
            "gate_accuracy": self.gates.accuracy,
            "step": self.step,
            "batches_drawn": self.batches_drawn,
            "score": self.score,
            "skips": vars(self.skips).copy(),
            "loss_scale": self.scale.state_dict(),
            "corpus": self.corpus.fingerprint(),
            "circumstances": self._circumstances(),
        }

    def _circumstances(self) -> dict[str, str]:
        """What the last bits of a step depend on beside its settings."""
        return {
            "seed": str(self.config.seed),
            "device": self.device.type,
            "processes": str(self.team.size),
            "threads": str(torch.get_num_threads()) if self.device.type == "cpu" else "",
            "torch": str(torch.__version__),
            "attention": self._attention(),
            "precision": str(self.config.trainer.precision),
        }

    def _attention(self) -> str:
        """The code of linear attention; empty for a model without, for which none is built."""
        model = self.config.model
        if model.kind is ModelKind.tacotron2 or model.attention == "softmax":
            return ""
        return kernel_in_use(self.device).partition(",")[0]

    def _tell_what_changed(self, before: dict[str, str]) -> None:
        now = self._circumstances()
        changes = [
            f"{name} {before[name]} -> {value}"
            for name, value in now.items()
            if value and before.get(name, value) != value  # what is empty plays no part
        ]
        if changes:
            log.warning(
                "not to the bit the run that was stopped: it changed %s", ", ".join(changes)
            )

    def _restore(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            if not name.endswith("optimizer"):
                part.load_state_dict(state[name])
        restore_optimizer(self.optimizer, state["optimizer"], self.schedule)
        restore_optimizer(self.judge_optimizer, state["judge_optimizer"])
        self.gates.accuracy = state["gate_accuracy"]
        self.step, self.batches_drawn = state["step"], state["batches_drawn"]
        self.score = state["score"]
        self.skips = Skips(**state.get("skips", {}))  # older runs ended at the first
        if "loss_scale" in state:  # older runs have none
            self.scale.load_state_dict(state["loss_scale"])
        self._tell_what_changed(state.get("circumstances", {}))


def checksum(module: nn.Module) -> str:
    """Changes with any value of the parameters, with near certainty; a few bytes to compare."""
    values = [p.detach().double() for p in module.parameters()]
    return float(torch.stack([value.norm() for value in values]).sum()).hex()


def parameters_in_millions(module: nn.Module) -> float:
    """Number of trained values."""
    return sum(p.numel() for p in module.parameters()) / 1e6


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        rows = [
            f"{key} {old.get(key)} != {new.get(key)}"
            for key in sorted({*old, *new})
            if old.get(key) != new.get(key)
        ]
        return ", ".join(rows)[:300]
    return f"{old} != {new}"[:300]


def detached(scalars: dict[str, Tensor]) -> dict[str, float]:
    """Scalars as floats, read from the device once."""
    if not scalars:
        return {}
    values = torch.stack([value.float() for value in scalars.values()]).tolist()
    return dict(zip(scalars, values, strict=True))
