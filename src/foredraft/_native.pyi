"""The native module (native/module.cpp, native/bind_pick.cpp). Arrays are C-contiguous."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]

def isa_names() -> list[str]:
    """Instruction sets this machine can run, best first."""

class Model:
    """A loaded model. Inconsistent arguments are a ValueError, and nothing is computed; a file that cannot be
    mapped is a RuntimeError.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        tensors: Sequence[tuple[str, str, int, int, int]],
        path: str,
        kv_blocks: int,
        kv_type: str = "f16",
        threads: int = 1,
        isa: str = "",
        progress: Callable[[int, int], object] | None = None,
        quant: str = "",
    ) -> None: ...
    def forward(
        self,
        tokens: Int32s,
        parents: Int32s,
        owners: Int32s,
        lengths: Int32s,
        tables: Int32s,
        wanted: Int32s,
        hidden_layers: Int32s,
        hidden_rows: Int32s,
        head_panels: Int32s | None = None,
    ) -> tuple[Floats, Floats]:
        """tokens, parents, owners [n]; lengths [s]; tables [s, blocks] -> logits [wanted, vocab],
        hidden [hidden_layers, hidden_rows, dim]. With `head_panels` [p], rising, the logits are those of
        16 tokens a panel, [wanted, 16 * p]; -inf beyond the vocabulary. An empty one is all panels.
        """

    def move(self, source: Int32s, target: Int32s) -> None:
        """Copy keys and values between physical slots (block * 64 + offset), in order."""

    def dequantise(self, name: str) -> Floats:
        """A matrix [outputs, inputs] as float32: the file's values exactly, unless it was requantised."""

    @property
    def threads(self) -> int: ...
    @threads.setter
    def threads(self, value: int) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def head_bytes(self) -> int: ...
    @property
    def kv_bytes_per_block(self) -> int: ...
    @property
    def isa(self) -> str: ...

class Sweep:
    """Memory to measure bandwidth on: `size` bytes, on pages like the weights'."""

    def __init__(self, size: int) -> None: ...
    def seconds(self, model: Model) -> float:
        """Time to read all of it once with the model's threads."""

class PickSettings:
    def __init__(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition: float,
        presence: float,
        frequency: float,
        seed: int,
        bias: Mapping[int, float],
    ) -> None: ...

class Picker:
    def __init__(self, threads: int = 1, baseline: bool = False) -> None: ...
    def pick(
        self,
        logits: Floats,
        settings: Sequence[PickSettings],
        positions: Sequence[int],
        seen: Sequence[Int32s],
        counts: Sequence[Int32s],
        paths: Sequence[Int32s],
    ) -> list[int]:
        """One token a row of logits [n, vocab]; below 0 is a refusal."""

def pick_noise(seed: int, position: int, tokens: Int32s) -> list[float]: ...
def pick_weights(lags: Sequence[float], baseline: bool = False) -> list[int]: ...

class ContextMemory:
    """Contexts of earlier texts (drafters/context.py: Memory). Safe to use from several threads."""

    def __init__(self, contexts: int = 1 << 19) -> None: ...
    def add(self, tokens: Sequence[int]) -> None: ...
    def open(self) -> ContextModel:
        """A model of a new text that knows this memory."""

class ContextModel:
    """Contexts of one text (drafters/context.py: ContextModel)."""

    def __init__(self, memory: ContextMemory | None = None) -> None: ...
    def add(self, tokens: Sequence[int]) -> None: ...
    def tree(
        self, tail: Sequence[int], most: int, depth: int, floor: float
    ) -> tuple[list[int], list[int], list[float]]:
        """Tokens, their parents (an index or -1) and their chances."""
