"""What listeners would say of a sound, as two networks predict it: mean opinion scores from 1 to 5.

Neither knows the text or a reference. They learned from noisy, coded and denoised speech: they hear
noise, hum and distortion, and know little of wrong words, rhythm or feeling. N samples.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from profforce.evaluation.figures import Row
from profforce.evaluation.judging import JUDGE_HZ, Take
from profforce.evaluation.packages import package_of

DIGITS = 4
"""Of a score: more is noise of the arithmetic."""
DNSMOS_KEYS = {
    "dnsmos_overall": "ovrl_mos",
    "dnsmos_signal": "sig_mos",
    "dnsmos_background": "bak_mos",
    "dnsmos_p808": "p808_mos",
}
"""And what its package calls them."""


class DistillMos:
    """DistillMOS (Stahl and Gamper 2025, arXiv:2502.05356): XLS-R's opinion in 4 M parameters.

    ``distillmos``, the mean over stretches of 7.7 s; shorter ones are filled up with silence.
    """

    def __init__(self) -> None:
        """Raises :class:`UserError` if the package is not installed."""
        package = package_of("distillmos.sqa")
        self.model = package.ConvTransformerSQAModel(load_weights=False)  # it would print
        weights = torch.load(package.DEFAULT_WEIGHTS_CHKPT, map_location="cpu", weights_only=True)
        self.model.load_state_dict(weights["model"])
        self.model.eval()

    @torch.no_grad()
    def __call__(self, take: Take) -> Row:
        """One score."""
        score = float(self.model(take.audio[None]))
        return {f"distillmos{take.suffix}": round(score, DIGITS)}


class DnsMos:
    """DNSMOS of noise suppressors, after ITU-T P.835 and P.808.

    ``dnsmos_signal``, ``dnsmos_background``, ``dnsmos_overall`` (Reddy et al. 2022,
    arXiv:2110.01763) and ``dnsmos_p808`` (Reddy et al. 2021, arXiv:2010.15258), the means over
    stretches of 9 s, a second apart; shorter sounds are repeated.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        """Raises :class:`UserError` if the package is not installed."""
        package = package_of("speechmos.dnsmos")
        folder = Path(str(package.__file__)).parent / "dnsmos_models"
        models = [str(folder / name) for name in ("sig_bak_ovr.onnx", "model_v8.onnx")]
        self.model: Any = package.DNSMOS(*models)
        # Its own sessions take every core there is.
        threads = num_threads or torch.get_num_threads()
        self.model.onnx_sess, self.model.p808_onnx_sess = (
            _session(package, model, threads) for model in models
        )

    def __call__(self, take: Take) -> Row:
        """Four scores; samples beyond full scale are clipped, as in a file."""
        said = self.model(take.audio.clamp(-1.0, 1.0).numpy(), JUDGE_HZ, False)
        return {
            f"{key}{take.suffix}": round(float(said[name]), DIGITS)
            for key, name in DNSMOS_KEYS.items()
        }


def _session(package: ModuleType, model: str, threads: int) -> Any:
    options = package.ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return package.ort.InferenceSession(
        model, sess_options=options, providers=["CPUExecutionProvider"]
    )
