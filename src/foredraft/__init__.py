"""foredraft: a language model answers faster, and the answer stays its own.

    from foredraft import LLM, Sampling

    with LLM("qwen2.5-coder-1.5b") as llm:
        print(llm.generate("Write a haiku about rivers.", Sampling(max_tokens=64)).text)

Names are imported when they are first used, so that `import foredraft` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.core.sampling import Sampling
    from foredraft.engine.chat import Chat
    from foredraft.engine.completion import Burst, Completion, Figures, TokenLogprob
    from foredraft.engine.drafting import Drafting
    from foredraft.engine.llm import LLM
    from foredraft.engine.stream import Stream
    from foredraft.errors import (
        ClosedError,
        ContextError,
        DownloadError,
        ForedraftError,
        MeasurementError,
        ModelFileError,
        ModelNotFoundError,
        NumericsError,
        OutOfMemoryError,
        QueueFullError,
        TemplateError,
        TokenError,
        UnsupportedModelError,
        UsageError,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Burst",
    "Chat",
    "ClosedError",
    "Completion",
    "ContextError",
    "DownloadError",
    "Drafting",
    "Figures",
    "ForedraftError",
    "MeasurementError",
    "ModelFileError",
    "ModelNotFoundError",
    "NumericsError",
    "OutOfMemoryError",
    "QueueFullError",
    "Sampling",
    "Stream",
    "TemplateError",
    "TokenError",
    "TokenLogprob",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> object:
    places = {
        "LLM": "engine.llm",
        "Burst": "engine.completion",
        "Chat": "engine.chat",
        "Completion": "engine.completion",
        "Drafting": "engine.drafting",
        "Figures": "engine.completion",
        "Sampling": "core.sampling",
        "Stream": "engine.stream",
        "TokenLogprob": "engine.completion",
    }
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{places.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
