"""A `Target` in its plainest form: the float64 twin of a model, which remembers tokens instead of keys and
values.

It reads and writes physical slots exactly as the block tables say, so that a sequence whose blocks are wrong
reads somebody else's tokens. And it computes every row from its own path alone: the most invariant target
there is.
"""

import numpy as np

from foredraft.core.pick import pick
from foredraft.core.target import NO_TAPS, Scores
from foredraft.engine.drafting import OFF
from foredraft.engine.kv import BLOCK
from foredraft.engine.llm import LLM
from foredraft.models.chat import ChatTemplate
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer
from foredraft.models.twin import twin_forward, twin_weights


class TwinTarget:
    def __init__(self, file, spec):
        self.spec = spec
        self.weights = twin_weights(file, spec)
        self.slots = {}  # physical slot: token
        self.known = {}  # tokens: logits
        self.passes = []  # number of rows of each

    @property
    def vocab(self):
        return self.spec.vocab

    def forward(self, rows, caches, wanted, taps=NO_TAPS):
        assert taps is NO_TAPS
        self.passes.append(len(rows))
        ranks = [int((rows.owners[:row] == owner).sum()) for row, owner in enumerate(rows.owners)]
        for owner, cache in enumerate(caches):
            cache.reserve(int((rows.owners == owner).sum()))
        paths = []
        for row, (token, parent, owner) in enumerate(
            zip(rows.tokens, rows.parents, rows.owners, strict=True)
        ):
            cache = caches[owner]
            before = self.read(cache) if parent < 0 else paths[parent]
            paths.append((*before, int(token)))
            self.slots[slot(cache, cache.length + ranks[row])] = int(token)
        logits = [self.logits(paths[row]) for row in wanted]
        return Scores(
            np.array(logits, np.float32).reshape(len(logits), self.vocab), np.zeros((0, 0, 0), np.float32)
        )

    def pick(self, logits, places):
        return [pick(row, place) for row, place in zip(logits, places, strict=True)]

    def keep(self, cache, path):
        moves = cache.keep(path)
        for source, target in zip(moves.source, moves.target, strict=True):
            self.slots[int(target)] = self.slots[int(source)]

    def read(self, cache):
        return tuple(self.slots[slot(cache, position)] for position in range(cache.length))

    def logits(self, tokens):
        if tokens not in self.known:
            self.known[tokens] = twin_forward(self.spec, self.weights, tokens)[-1].astype(np.float32)
        return self.known[tokens]


def slot(cache, position):
    return cache.blocks[position // BLOCK] * BLOCK + position % BLOCK


def twin_llm(path, ctx=256, drafting=OFF):
    """An `LLM` whose target is the twin of the model in the file."""
    file = read_gguf(path)
    tokenizer = Tokenizer.from_gguf(file)
    template = ChatTemplate.from_gguf(file, tokenizer)
    return LLM.of(TwinTarget(file, describe(file)), tokenizer, template, ctx=ctx, drafting=drafting)
