"""Drafters that are right, wrong, slow or broken on purpose, and ways to answer a request with them."""

import random
import threading
from dataclasses import replace

from foredraft.core.nouns import Draft
from foredraft.core.sampling import Sampling
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import SCRATCH_ROWS
from foredraft.engine.kv import KVPool, blocks_for
from foredraft.engine.request import Request
from foredraft.engine.speculator import Limits, Speculator
from foredraft.engine.stream import Host, Stream
from foredraft.measure.replay import ReplayTarget, VirtualClock
from foredraft.models.stream import TextStream


class Truth:
    """Knows the whole text, and drafts what comes next: a chain."""

    name = "truth"

    def __init__(self, text, chance=0.95):
        self.text = tuple(text)
        self.chance = chance
        self.asked = 0
        self.closed = 0

    def propose(self, ask):
        self.asked += 1
        start = len(ask.text)
        tokens = self.text[start : start + min(ask.most, ask.depth)]
        return Draft.chain(tokens, [self.chance] * len(tokens), self.name)

    def close(self):
        self.closed += 1


class Garbage(Truth):
    """Random trees, of which it is sure; with a text, some of the tokens are true."""

    name = "garbage"

    def __init__(self, vocab, seed=0, text=(), chance=0.9):
        super().__init__(text, chance)
        self.vocab = vocab
        self.random = random.Random(seed)

    def propose(self, ask):
        self.asked += 1
        depths, tokens, parents = [], [], []
        for index in range(min(ask.most, self.random.randint(0, 80))):
            parent = self.random.choice([-1, index - 1, self.random.randint(-1, index - 1)])
            depth = 0 if parent < 0 else depths[parent] + 1
            at = len(ask.text) + depth
            known = at < len(self.text) and self.random.random() < 0.7
            tokens.append(self.text[at] if known else self.random.randrange(self.vocab))
            parents.append(parent)
            depths.append(depth)
        return Draft(tuple(tokens), tuple(parents), (self.chance,) * len(tokens), (self.name,) * len(tokens))


class Fixed(Truth):
    """Says the same whatever is asked: a draft, or anything else."""

    name = "fixed"

    def __init__(self, answer):
        super().__init__(())
        self.answer = answer

    def propose(self, ask):
        self.asked += 1
        return self.answer


class Broken(Truth):
    """Drafts the truth until it raises, in the method named."""

    name = "broken"

    def __init__(self, text, where, healthy=2):
        super().__init__(text)
        self.where = where
        self.healthy = healthy
        self.called = 0

    def propose(self, ask):
        self._may_break("propose")
        return super().propose(ask)

    def least_s(self):
        return 0.0

    def catch_up_s(self, text):
        self._may_break("catch_up_s")
        return 0.0

    def catch_up(self, text):
        """It never lags."""

    def close(self):
        super().close()
        self._may_break("close")

    def _may_break(self, method):
        if method in self.where:
            self.called += 1
            if self.called > self.healthy or method == "close":
                raise RuntimeError(f"broken in {method}")


class Slow(Truth):
    """Another drafter, in front of which time passes."""

    name = "slow"

    def __init__(self, other, clock, seconds):
        super().__init__(())
        self.other = other
        self.clock = clock
        self.seconds = seconds

    def propose(self, ask):
        self.asked += 1
        self.clock.advance(self.seconds)
        draft = self.other.propose(ask)
        return Draft(draft.tokens, draft.parents, draft.chances, (self.name,) * len(draft))


def answer(llm, prompt, sampling, drafters, k=None, logprobs=None, rule="match", trace=None):
    """What `llm.generate` gives for token ids, with these drafters."""
    request = llm.request(prompt, sampling, 0.0, logprobs, trace)
    request = replace(request, rule=rule)
    limits = Limits(llm.target.vocab, request.ends, k)
    speculator = Speculator(drafters, Controller(PassCost(), Acceptance()), limits)
    cache = llm.pool.open()
    stops = request.sampling.stop
    text = TextStream(llm.tokenizer, stops=stops, end_ids=request.ends, max_tokens=request.most)
    with Stream(Host(llm.target, cache, threading.RLock(), cache.close), request, text, speculator) as stream:
        list(stream)
    return stream.completion


class Experience:
    """What outlives a request."""

    def __init__(self):
        self.cost = PassCost()
        self.acceptance = Acceptance()


def replay(tokenizer, recording, prices, drafters, *, clock=None, k=None, experience=None, trace=None):
    """The completion of a recorded answer, given once more with these drafters; times are the prices'."""
    clock = clock or VirtualClock()
    experience = experience or Experience()
    most = len(recording.output)
    vocab = 1 + max(*recording.prompt, *recording.output, 1)
    cache = KVPool(blocks_for(len(recording.prompt) + most + SCRATCH_ROWS + 1)).open()
    limits = Limits(vocab, frozenset(), k)
    stream = Stream(
        Host(ReplayTarget(recording, prices, clock, vocab), cache, threading.RLock(), cache.close, clock),
        Request(recording.prompt, Sampling(max_tokens=most), frozenset(), most, clock(), trace=trace),
        TextStream(tokenizer, end_ids=(), max_tokens=most),
        Speculator(drafters, Controller(experience.cost, experience.acceptance), limits, clock),
    )
    list(stream)
    assert stream.completion.ids == recording.output, "the replay left the recording"
    return stream.completion
