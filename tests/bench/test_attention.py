"""Suite ``attention``: batch and recurrent form are one function, and the errors would show it."""

import json
from pathlib import Path

import pytest
import torch

from profforce.app import main
from profforce.bench import attention
from profforce.bench.attention import PASSES, SUITE, parse_shape
from profforce.bench.decode import Stack
from profforce.config import BenchConfig
from profforce.errors import UserError

CPU = torch.device("cpu")
SMALL = {"B": 3, "T": 11, "L": 2, "H": 2, "D": 32}
OWN = [f"{kind}_{passes}" for kind in ("linear", "softmax") for passes in PASSES]
CONFIG = BenchConfig(suite="attention")


def test_every_form_is_right() -> None:
    forms = SUITE.forms(OWN, SMALL, CONFIG, CPU)
    assert list(forms) == OWN
    for name, form in forms.items():
        assert form.error is not None and form.error() < 1e-5, name


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_the_recurrent_form_generates_what_the_batch_form_gives(kind: str) -> None:
    names = [f"{kind}_batch_fwd", f"{kind}_recurrent", f"{kind}_batch_fwdbwd"]
    batch, recurrent, backward = (
        form.run() for form in SUITE.forms(names, SMALL, CONFIG, CPU).values()
    )
    assert batch[0].shape == (3, 11, 32)  # type: ignore[index]
    torch.testing.assert_close(recurrent, batch, rtol=1e-4, atol=1e-5)
    assert len(backward) == 2 and backward[1].abs().sum() > 0  # type: ignore[index, arg-type]
    torch.testing.assert_close(backward[0], batch[0], rtol=1e-4, atol=1e-5)  # type: ignore[index]


def test_wrong_forms_show_as_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    right_step, right_backward = Stack.step, attention._backward

    def wrong_step(self, x, states, t):  # type: ignore[no-untyped-def]
        return right_step(self, x, states, t) * 1.01

    def wrong_backward(stack, x, grad):  # type: ignore[no-untyped-def]
        out, found = right_backward(stack, x, grad)
        return out, found * (1.01 if x.dtype == torch.float32 else 1)

    monkeypatch.setattr(Stack, "step", wrong_step)
    monkeypatch.setattr(attention, "_backward", wrong_backward)
    forms = SUITE.forms(OWN, SMALL, CONFIG, CPU)
    errors = {name: form.error() for name, form in forms.items() if form.error}
    for name, error in errors.items():
        assert (error > 5e-3) == (not name.endswith("_batch_fwd")), name


def test_long_cases_are_not_checked() -> None:
    case = {**SMALL, "B": 1, "T": attention.CHECKED_FRAMES + 1, "L": 1}
    (form,) = SUITE.forms(["linear_batch_fwd"], case, CONFIG, CPU).values()
    assert form.error is None


def test_shapes() -> None:
    assert parse_shape("8x500x4x8x512") == {"B": 8, "T": 500, "L": 4, "H": 8, "D": 512}
    for text in ("8x500", "0x5x1x1x2", "axbxcxdxe", "1x2x3x4x5x6"):
        with pytest.raises(UserError, match="is no shape"):
            parse_shape(text)
    for text in ("1x2x1x3x32", "1x2x1x3x9"):
        with pytest.raises(UserError, match="heads of no whole width"):
            parse_shape(text)


def test_the_command_gives_every_form_and_an_utterances_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["suite=attention", "shapes=[4x9x1x2x16]", "repeats=2", "threads=1", "memory=false"]
    assert main(["bench", *words, "device=cpu", "--json", "a.json"]) == 0
    found = json.loads(Path("a.json").read_text())
    assert [row["form"] for row in found["rows"]] == OWN
    for row, share in zip(found["rows"], found["an_utterance"], strict=True):
        assert share["form"] == row["form"]
        assert share["ms"] == pytest.approx(row["ms_median"] / 4, rel=1e-3)


def test_the_peers_take_part() -> None:
    pytest.importorskip("fast_transformers")
    config = BenchConfig(suite="attention", peers=True)
    groups = SUITE.groups(config, CPU)
    names = [n for group in groups.values() for n in group if n.startswith("fast_")]
    assert names == [f"fast_transformers_{name}" for name in OWN]
    for form in SUITE.forms(names, SMALL, config, CPU).values():
        out = form.run()
        out = out[0] if isinstance(out, tuple) else out
        assert isinstance(out, torch.Tensor) and out.shape == (3, 11, 32)


def test_the_peers_forms_are_causal() -> None:
    """Their batch form must not see what comes later, as their recurrent form cannot."""
    pytest.importorskip("fast_transformers")
    for kind in ("linear", "full"):
        torch.manual_seed(0)
        x, grad = torch.randn(1, 8, 32), torch.randn(1, 8, 32)
        run = attention._peer(kind, "batch_fwd", x, grad, {**SMALL, "B": 1, "T": 8})
        before = run()
        x[:, 5:] += 1
        after = run()
        assert isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)
        torch.testing.assert_close(before[:, :5], after[:, :5])
        assert not torch.allclose(before[:, 5:], after[:, 5:])
