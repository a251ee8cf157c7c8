"""A model that errs as on texts it does not know: its weights with noise on them.

Soon a model knows the texts of its corpus so well that it makes few of the mistakes on them that it
makes on others, and an expert has nothing left to put right. Noise on what acts leads the learner
into the states that it will have to come back from (Laskey et al. 2017, arXiv:1703.09327); noise on
its weights keeps an utterance of one piece, where noise on each frame does not (Plappert et al.
2018, arXiv:1706.01905).
"""

import copy

import torch

from profforce.models.tts import TTSModel


class Explorer:
    """A twin of a model, disturbed anew each time it is asked for."""

    def __init__(self, deviation: float) -> None:
        """``deviation`` of the normal noise: matrices and kernels are multiplied by 1 + noise."""
        self.deviation = deviation
        self._twin: TTSModel | None = None  # one for all: engines prepare for a model but once

    @torch.no_grad()
    def twin_of(self, model: TTSModel, seed: int) -> TTSModel:
        """The model as it is now with noise on its weights; the one returned before is gone.

        Args:
            model: not changed; the same, or another of its kind, as before.
            seed: of the draws, which depend on the kind of device.
        """
        if self._twin is None:
            self._twin = copy.deepcopy(model)
        twin = self._twin
        twin.load_state_dict(model.state_dict())
        source = torch.Generator(twin.mel_mean.device).manual_seed(seed)
        for weight in twin.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=source, device=weight.device)
                weight.mul_(1 + self.deviation * noise.to(weight.dtype))
        return twin
