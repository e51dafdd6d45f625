"""The draft models of an `LLM`: loaded once, used by every request."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.core.target import Target
from foredraft.drafters.model import Context, ModelDrafter
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.kv import BLOCK, KVPool, blocks_for
from foredraft.errors import ForedraftError, UsageError
from foredraft.models.cache import find_model, model_path
from foredraft.models.draft import FREQUENT, NativeDraftTarget
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.pairing import check_pair
from foredraft.models.registry import entry_of
from foredraft.models.target import PANEL, QUANTS, LoadOptions, NativeTarget, Quant
from foredraft.models.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A loaded one, its memory for keys and values, and what is known of its passes."""

    name: str
    native: NativeTarget
    pool: KVPool
    positions: int
    special_ids: frozenset[int]
    cost: PassCost
    acceptance: Acceptance

    def drafter(
        self, target: Target, prompt: Sequence[int], context: Context, clock: Callable[[], float]
    ) -> ModelDrafter:
        """At work for one request with this prompt."""
        cache = self.pool.open()
        return ModelDrafter(
            f"model:{self.name}",
            NativeDraftTarget(self.native, target.vocab, [*self.special_ids, *prompt]),
            cache,
            self.positions,
            context,
            Controller(self.cost, self.acceptance),
            cache.close,
            clock,
        )


@dataclass(frozen=True)
class DraftOptions:
    """How draft models are loaded. `positions`: the target's context and its scratch; `contexts`: how many
    requests that long can be drafted for at once.
    """

    positions: int
    threads: int
    quant: Quant
    contexts: int = 1

    def __post_init__(self) -> None:
        if self.quant not in QUANTS:
            raise UsageError(f"draft_quant is {self.quant!r}, but must be one of {', '.join(QUANTS)}")


class DraftModels:
    """Of one target."""

    def __init__(
        self, target: NativeTarget, tokenizer: Tokenizer, name: str, cost: PassCost, options: DraftOptions
    ) -> None:
        self._target = target
        self._tokenizer = tokenizer
        self._name = name
        self._cost = cost
        self._options = options
        self._loaded: dict[str, DraftModel] = {}
        self._loading = threading.Lock()
        self._unusable: set[str] = set()  # what was warned of

    def default(self) -> str | None:
        """The model that the registry names for this target, if it has been pulled."""
        entry = entry_of(self._name)
        if entry is None or entry.drafter is None or not model_path(entry.drafter).is_file():
            return None
        return entry.drafter

    def get(self, name: str) -> DraftModel:
        """Load it, unless it is there."""
        with self._loading:
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
            return self._loaded[name]

    def get_default(self) -> DraftModel | None:
        """The default one; None if there is none, or (with a warning, once) if it cannot be used."""
        name = self.default()
        if name is None or name in self._unusable:
            return None
        try:
            return self.get(name)
        except ForedraftError as error:
            log.warning("drafting without %s: %s", name, error)
            self._unusable.add(name)
            return None

    def _load(self, name: str) -> DraftModel:
        path = find_model(name)
        file = read_gguf(path)
        spec = describe(file)
        tokenizer = Tokenizer.from_gguf(file)
        check_pair(self._tokenizer, tokenizer, self._name, name)
        positions = min(self._options.positions, blocks_for(spec.context) * BLOCK)
        blocks = blocks_for(positions) * self._options.contexts
        options = LoadOptions(blocks, threads=self._options.threads, quant=self._options.quant)
        native = NativeTarget.load(file, spec, options)
        factor = native.read_bytes(FREQUENT // PANEL) / self._target.model.weight_bytes
        cost = PassCost(self._cost, factor)
        return DraftModel(
            name, native, KVPool(options.blocks), positions, tokenizer.special_ids, cost, Acceptance()
        )
