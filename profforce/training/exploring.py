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


@torch.no_grad()
def disturbed_copy(model: TTSModel, deviation: float, seed: int) -> TTSModel:
    """A copy whose weight matrices and kernels are multiplied by 1 + noise, the rest as it is.

    Args:
        model: not changed.
        deviation: of the normal noise, one draw for each weight.
        seed: of the draws, which depend on the kind of device.
    """
    twin = copy.deepcopy(model)
    source = torch.Generator(twin.mel_mean.device).manual_seed(seed)
    for weight in twin.parameters():
        if weight.dim() > 1:
            noise = torch.randn(weight.shape, generator=source, device=weight.device)
            weight.mul_(1 + deviation * noise.to(weight.dtype))
    return twin
