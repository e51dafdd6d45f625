"""A model drafter at work, with a tiny draft model and a clock that never differs."""

from foredraft.core.drafter import Ask
from foredraft.core.history import History
from foredraft.core.nouns import Draft, Rows, int32s
from foredraft.core.pick import Place, pick
from foredraft.core.sampling import Sampling
from foredraft.drafters.model import ModelDrafter
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.kv import BLOCK
from foredraft.models.draft import NativeDraftTarget

BLOCKS = 20  # of the draft model's memory
PROMPT = list(range(30, 50))
GREEDY = Sampling()


class Nothing:
    """Drafts nothing for the draft model."""

    def extend(self, text, path, most, depth, floor):
        return Draft.empty

    def close(self):
        pass


class Script:
    """Knows the whole text to come."""

    def __init__(self, text):
        self.text = text

    def extend(self, text, path, most, depth, floor):
        start = len(text) + len(path)
        count = min(most, depth)
        return Draft.chain(self.text[start : start + count], [0.99] * count, "script")

    def close(self):
        pass


class Steady:
    """A clock by which everything that is timed takes a millisecond, so that rows are nearly free."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


class Passes(NativeDraftTarget):
    """Remembers how many rows each pass had, and the positions in use."""

    def __init__(self, native, vocab=300):
        super().__init__(native, vocab, ())
        self.rows, self.furthest = [], 0

    def forward(self, rows, caches, wanted, *more):
        self.rows.append(len(rows))
        self.furthest = max(self.furthest, caches[0].length + len(rows))
        return super().forward(rows, caches, wanted, *more)


class Drafting:
    """A drafter at work, closed at the end."""

    def __init__(self, model, pool, context=None, capacity=BLOCKS * BLOCK, vocab=300):
        self.target = Passes(model, vocab)
        self.cache = pool.open()
        chooser = Controller(PassCost(), Acceptance())
        self.drafter = ModelDrafter(
            "model:tiny",
            self.target,
            self.cache,
            capacity,
            context or Nothing(),
            chooser,
            self.cache.close,
            Steady(),
        )
        self.propose = self.drafter.propose

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.drafter.close()


def asked(text, k=6, sampling=GREEDY, **more):
    history = History(text[: len(PROMPT)])
    history.add(text[len(PROMPT) :])
    return Ask(list(text), k, k, sampling, history, **more)


def written(model, pool, text, count, sampling=GREEDY, skipped=0):
    """What the model alone writes after the text, token by token."""
    text = list(text)
    with pool.open() as cache:
        for _ in range(count):
            pending = text[skipped + cache.length :]
            logits = model.forward(Rows.chain(pending), [cache], int32s([len(pending) - 1])).logits[0]
            model.keep(cache, range(len(pending)))
            history = History(text[: len(PROMPT)])
            history.add(text[len(PROMPT) :])
            text.append(pick(logits, Place(sampling, len(text), history)))
    return text[-count:]
