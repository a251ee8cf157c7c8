"""profforce: professor forcing for autoregressive mel-spectrogram Transformers.

``from profforce import Synthesizer`` speaks with a trained run. It is imported when it is asked
for, so that the command line's help does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profforce.errors import UserError
    from profforce.sampling.speech import Speech
    from profforce.sampling.stream import Chunk
    from profforce.sampling.synthesizer import Synthesizer

__all__ = ["Chunk", "Speech", "Synthesizer", "UserError", "__version__"]
__version__ = "0.1.0"

_HOMES = {
    "Chunk": "profforce.sampling.stream",
    "Speech": "profforce.sampling.speech",
    "Synthesizer": "profforce.sampling.synthesizer",
    "UserError": "profforce.errors",
}


def __getattr__(name: str) -> Any:
    """Import what :data:`_HOMES` knows at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
