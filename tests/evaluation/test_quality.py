"""Predicted opinions of sounds: what they are asked, and that clean speech is liked better."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from profforce.audio.files import resample
from profforce.config import EvaluateConfig, JudgeName
from profforce.errors import UserError
from profforce.evaluation.judges import judges_of
from profforce.evaluation.judging import JUDGE_HZ, Judge, Take
from profforce.evaluation.quality import DistillMos, DnsMos


class Options:
    """What a session is made with."""

    intra_op_num_threads = inter_op_num_threads = 0


class Dnsmos:
    """Stands in for that of ``speechmos``."""

    def __init__(self, primary: str, p808: str) -> None:
        self.names = (primary, p808)
        self.onnx_sess: Any = None
        self.p808_onnx_sess: Any = None

    def __call__(self, audio: npt.NDArray[np.float32], rate: int, personal: bool) -> dict[str, Any]:
        assert rate == JUDGE_HZ and not personal and np.abs(audio).max() <= 1.0
        threads = self.onnx_sess["options"].intra_op_num_threads
        names = ("ovrl_mos", "sig_mos", "bak_mos", "p808_mos")
        return {name: np.float32(threads + n) for n, name in enumerate(names)}


def package(name: str) -> Any:
    def session(model: str, sess_options: Options, providers: list[str]) -> dict[str, Any]:
        return {"model": model, "options": sess_options, "providers": providers}

    ort = SimpleNamespace(SessionOptions=Options, InferenceSession=session)
    return SimpleNamespace(DNSMOS=Dnsmos, ort=ort, __file__="/packages/speechmos/dnsmos.py")


def test_four_scores_of_dnsmos_from_threads_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profforce.evaluation.packages.import_module", package)
    judge = DnsMos(3)
    assert judge.model.names[1].endswith("/speechmos/dnsmos_models/model_v8.onnx")
    assert judge.model.onnx_sess["providers"] == ["CPUExecutionProvider"]
    assert judge(Take("x", torch.tensor([2.0, -0.5]), "_forced")) == {
        "dnsmos_overall_forced": 3.0,
        "dnsmos_signal_forced": 4.0,
        "dnsmos_background_forced": 5.0,
        "dnsmos_p808_forced": 6.0,
    }


class Level(nn.Module):
    """Scores the mean; its one weight comes from a file."""

    def __init__(self, load_weights: bool) -> None:
        super().__init__()
        assert not load_weights
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, audio: Tensor) -> Tensor:
        return self.scale * audio.mean(1, keepdim=True)


def test_distillmos_scores_with_the_weights_of_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.save({"model": {"scale": torch.tensor(4.0)}}, path)
    package = SimpleNamespace(ConvTransformerSQAModel=Level, DEFAULT_WEIGHTS_CHKPT=str(path))
    monkeypatch.setattr("profforce.evaluation.packages.import_module", lambda _: package)
    assert DistillMos()(Take("x", torch.ones(16))) == {"distillmos": 4.0}


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (JudgeName.whisper, "'faster_whisper' is not installed; run: pip install 'profforce"),
        (JudgeName.distillmos, "'distillmos.sqa' is not installed; run: pip install 'profforce"),
        (JudgeName.dnsmos, "'speechmos.dnsmos' is not installed; run: pip install 'profforce"),
        (
            JudgeName.speaker,
            "speaker are not installed; run: pip install 'profforce[speaker]'",
        ),
    ],
    ids=lambda value: str(value).partition(" ")[0],
)
def test_what_is_missing_is_named(
    judge: JudgeName, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("profforce.evaluation.packages.import_module", missing)
    monkeypatch.setattr("profforce.evaluation.packages.find_spec", lambda _: None)
    with pytest.raises(UserError) as caught:
        judges_of(EvaluateConfig(judges=[judge]))
    assert said in str(caught.value)


def test_judges_are_each_asked_once_in_one_order() -> None:
    names = [JudgeName.speaker, JudgeName.dnsmos, JudgeName.speaker]
    assert EvaluateConfig(judges=names).all_judges == (JudgeName.dnsmos, JudgeName.speaker)
    assert EvaluateConfig(judges=names, listen=True).all_judges[0] is JudgeName.whisper
    assert EvaluateConfig(listen=True).all_judges == (JudgeName.whisper,)
    assert EvaluateConfig().all_judges == () == tuple(judges_of(EvaluateConfig()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "make", "key"),
    [
        ("distillmos", DistillMos, "distillmos"),
        ("speechmos.dnsmos", DnsMos, "dnsmos_overall"),
        ("speechmos.dnsmos", DnsMos, "dnsmos_p808"),
    ],
    ids=["distillmos", "dnsmos", "p808"],
)
def test_clean_speech_is_liked_better_than_noise(
    module: str, make: Callable[[], Judge], key: str
) -> None:
    pytest.importorskip(module)
    pytest.importorskip("hibari")
    from hibari import Hibari

    read = torch.from_numpy(Hibari()("The meeting is at four thirty in the garden.", seed=0))
    clean = resample(read, 24_000, JUDGE_HZ)
    judge, noise = make(), torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    sounds = [clean, clean + 0.1 * clean.square().mean().sqrt() * noise, 0.1 * noise]
    scores = [judge(Take("x", sound))[key] for sound in sounds]
    assert scores == sorted(scores, reverse=True) and scores[0] > 3.0 > scores[2] >= 1.0
    assert scores[0] - scores[1] > 0.4
    assert judge(Take("x", clean)) == judge(Take("x", clean))
