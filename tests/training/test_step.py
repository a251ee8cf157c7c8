"""The professor-forcing step: its losses and whom they move."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from profforce.config import DiscriminatorKind, TrainConfig
from profforce.data.batch import collate
from profforce.data.corpus import Corpus
from profforce.models.discriminator import behaviour, gan_loss
from profforce.nn.noise import PrenetNoise
from profforce.training.adversary import frozen
from profforce.training.crops import paired_crops
from profforce.training.gates import ForcingWeights
from profforce.training.passes import teacher_forced
from profforce.training.seeds import generator
from profforce.training.state import TrainState
from profforce.training.step import StepLoss, differentiate, professor_forcing_step

CPU = torch.device("cpu")


def parts(
    state: TrainState, weights: ForcingWeights, *, judge_learns: bool = True
) -> Iterator[StepLoss]:
    state.pool.refresh(state.mirror, 2, CPU)
    batch = collate([state.corpus.train[i] for i in range(4)])
    torch.manual_seed(0)  # dropout
    return professor_forcing_step(
        state.model,
        state.discriminator,
        state.control,
        batch,
        state.pool.draw(4, CPU),
        noise=PrenetNoise(0, batch.indices),
        weights=weights,
        judge_learns=judge_learns,
        crop_generator=generator(0, "crop", 0),
        config=state.config,
    )


def losses(state: TrainState, weights: ForcingWeights) -> tuple[torch.Tensor, torch.Tensor]:
    *own, judged = [part.value for part in parts(state, weights)]
    return sum(own), judged


def test_the_real_crops_are_judged_once_for_all_terms(config: TrainConfig, corpus: Corpus) -> None:
    """And each term is what it is alone."""
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.discriminator.eval()  # the power iteration of a spectral norm would move
    calls: list[int] = []
    state.discriminator.register_forward_hook(lambda *call: calls.append(len(call[1][0])))
    told = {}
    for weights in ((0.5, 0.1, 0.0), (0.5, 0.0, 0.2), (0.5, 0.1, 0.2)):
        free, teacher, matching = weights
        calls.clear()
        scalars: dict[str, torch.Tensor] = {}
        for part in parts(state, ForcingWeights(free, teacher, matching=matching)):
            scalars |= part.scalars
        told[weights] = scalars
        assert calls == [4, 4, 8]  # made, real; both for the judge itself
    both = told[0.5, 0.1, 0.2]
    assert torch.equal(both["gan/teacher_forced"], told[0.5, 0.1, 0.0]["gan/teacher_forced"])
    assert torch.equal(both["gan/matching"], told[0.5, 0.0, 0.2]["gan/matching"])


def test_each_loss_moves_its_own_network_only(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    model_loss, judge_loss = losses(state, ForcingWeights(0.5, 0.1))
    model_loss.backward()
    assert all(p.grad is None for p in state.judges.parameters())
    assert all(p.grad is not None for p in state.model.parameters())
    state.model.zero_grad()
    judge_loss.backward()
    assert all(p.grad is not None for p in state.judges.parameters())
    assert all(p.grad is None for p in state.model.parameters())


def test_professor_forcing_changes_the_gradient_and_weight_zero_does_not(
    config: TrainConfig, corpus: Corpus
) -> None:
    grads = []
    for weights in (ForcingWeights(), ForcingWeights(free=1), ForcingWeights(teacher=1)):
        state = TrainState(config, corpus, CPU)
        state.set_mel_statistics()
        losses(state, weights)[0].backward()
        grads.append(state.model.mel_out.weight.grad)
    plain, free, teacher = grads
    assert plain is not None and free is not None and teacher is not None
    assert not torch.allclose(plain, free) and not torch.allclose(plain, teacher)


def test_frozen_lets_gradients_through_and_restores_the_flags() -> None:
    layer = torch.nn.Linear(2, 1)
    layer.bias.requires_grad_(False)
    x = torch.ones(1, 2, requires_grad=True)
    with frozen(layer):
        layer(x).sum().backward()
    assert x.grad is not None and layer.weight.grad is None
    assert layer.weight.requires_grad and not layer.bias.requires_grad


def test_a_pass_without_the_postnet_is_the_same_up_to_it(
    config: TrainConfig, corpus: Corpus
) -> None:
    state = TrainState(config, corpus, CPU)
    state.model.eval()
    batch = collate([corpus.train[i] for i in range(3)])
    noise = PrenetNoise(0, batch.indices)
    whole = teacher_forced(state.model, batch, noise)
    bare = teacher_forced(state.model, batch, noise, refine=False)
    for name in ("mel_before", "stop_logits", "hidden", "alignments"):
        assert torch.equal(getattr(whole, name), getattr(bare, name)), name
    assert torch.equal(bare.mel, bare.mel_before)
    assert not torch.equal(whole.mel, whole.mel_before)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_recomputing_activations_gives_the_same_gradients_from_less_memory(
    config: TrainConfig, corpus: Corpus, attention: str
) -> None:
    """Also with dropout, whose draws must be the same the second time, and ragged lengths."""
    kept: list[dict[int, int]] = []
    grads = []
    for recompute in (False, True):
        model = replace(config.model, attention=attention, dropout=0.3, decoder_layers=3)
        trainer = replace(config.trainer, recompute_activations=recompute)
        state = TrainState(replace(config, model=model, trainer=trainer), corpus, CPU)
        state.set_mel_statistics()
        batch = collate([corpus.train[i] for i in range(6)])
        seen: dict[int, int] = {}

        def note(x: torch.Tensor, seen: dict[int, int] = seen) -> torch.Tensor:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        torch.manual_seed(0)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            out = teacher_forced(state.model, batch, PrenetNoise(0, batch.indices))
        (out.mel.square().sum() + out.stop_logits.sum() + out.alignments.square().sum()).backward()
        kept.append(seen)
        grads.append({name: p.grad for name, p in state.model.named_parameters()})
    for name, grad in grads[0].items():
        assert grad is not None and grads[1][name] is not None, name
        torch.testing.assert_close(grads[1][name], grad, rtol=0, atol=0, msg=name)
    plain, less = (sum(sizes.values()) for sizes in kept)
    assert less < 0.7 * plain


@pytest.mark.parametrize("kind", list(DiscriminatorKind))
def test_the_discriminator_judges_both_halves_as_if_each_were_alone(
    config: TrainConfig, corpus: Corpus, kind: DiscriminatorKind
) -> None:
    config = replace(config, discriminator=replace(config.discriminator, kind=kind))
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    state.model.eval()
    _, told = losses(state, ForcingWeights())

    state.pool.refresh(state.mirror, 2, CPU)
    real = collate([corpus.train[i] for i in range(4)])
    pool = state.pool.draw(4, CPU)
    frames = config.model.reduction_factor
    halves = []
    for batch, noise in ((real, PrenetNoise(0, real.indices)), (pool.batch, pool.noise)):
        out = teacher_forced(state.model, batch, noise)
        outputs = state.model.normalize(out.mel_before)
        halves.append(behaviour(out.hidden, outputs, None, config.discriminator, frames))
    first, second, lengths = paired_crops(
        *halves,
        -(-real.mel_lengths // frames),
        -(-pool.batch.mel_lengths // frames),
        config.discriminator.crop_steps,
        generator(0, "crop", 0),
    )
    kind_of_loss = config.discriminator.loss
    expected = torch.zeros(())
    for half, is_real in ((first, True), (second, False)):
        expected = expected + gan_loss(
            state.discriminator(half, lengths).logits, is_real, kind_of_loss
        )
        expected = expected + gan_loss(state.control(half), is_real, kind_of_loss)
    torch.testing.assert_close(told, expected)


@pytest.mark.parametrize(
    "weights",
    [
        ForcingWeights(free=0.5),
        ForcingWeights(0.5, 0.1, 0.2),
        ForcingWeights(),
        ForcingWeights(free=0.5, imitation=0.3, attention=0.2),
        ForcingWeights(imitation=0.3),
    ],
)
def test_losses_one_after_the_other_add_up_to_the_same_gradients(
    config: TrainConfig, corpus: Corpus, weights: ForcingWeights
) -> None:
    method = replace(config.method, imitation_weight=1.0)  # the pool knows its recordings
    config = replace(config, method=method)
    whole, single = (TrainState(config, corpus, CPU) for _ in range(2))
    for state in (whole, single):
        state.set_mel_statistics()
    model_loss, judge_loss = losses(whole, weights)
    (model_loss + judge_loss).backward()
    scalars = differentiate(parts(single, weights))
    for ours, theirs in (
        (single.model.parameters(), whole.model.parameters()),
        (single.judges.parameters(), whole.judges.parameters()),
    ):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    assert {"loss/total", "gan/accuracy", "gan/discriminator"} <= set(scalars)
    assert ("gan/free_running" in scalars) == (weights.judged)


class Held:
    """Counts the bytes that graphs hold for their backward passes."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, x: torch.Tensor) -> "Kept":
        return Kept(self, x)


class Kept:
    """A tensor that a graph holds; its owner knows when it is let go."""

    def __init__(self, owner: Held, x: torch.Tensor) -> None:
        self.owner, self.x, self.size = owner, x, x.numel() * x.element_size()
        owner.now += self.size
        owner.most = max(owner.most, owner.now)

    def __del__(self) -> None:
        self.owner.now -= self.size


def test_a_step_holds_one_pass_at_a_time(config: TrainConfig, corpus: Corpus) -> None:
    most = {}
    for name in ("teacher_forcing", "one by one", "at once"):
        state = TrainState(config, corpus, CPU)
        state.set_mel_statistics()
        with torch.no_grad():
            state.model.stop_out.bias.fill_(-9)  # generated as long as recorded, at least
        held = Held()
        with torch.autograd.graph.saved_tensors_hooks(held.pack, lambda kept: kept.x):
            if name == "teacher_forcing":
                differentiate([next(parts(state, ForcingWeights(free=0.5)))])
            elif name == "one by one":
                differentiate(parts(state, ForcingWeights(free=0.5)))
            else:
                losses(state, ForcingWeights(free=0.5))
        most[name] = held.most
    assert most["at once"] > 1.8 * most["teacher_forcing"]
    assert most["one by one"] < 1.6 * most["teacher_forcing"]  # generated frames are 1.5 times more


def test_a_judge_that_rests_gets_a_reading_and_no_loss(config: TrainConfig, corpus: Corpus) -> None:
    state = TrainState(config, corpus, CPU)
    state.set_mel_statistics()
    scalars = differentiate(parts(state, ForcingWeights(free=0.5), judge_learns=False))
    assert 0 <= float(scalars["gan/accuracy"]) <= 1
    assert all(p.grad is None for p in state.judges.parameters())
