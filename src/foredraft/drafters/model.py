"""Drafting with a smaller model that knows the same tokens (Leviathan et al. 2023; Chen et al. 2023).

It has keys and values of its own and picks with the target's noise, so that sampled drafts agree nearly as
often as greedy ones. And it is drafted for itself: a context model guesses what the draft model will say, and
one pass confirms several tokens. That is `core/round.py` once more, one level down.

It stops where its own confidence says that the next pass is not worth its time, names the runner-up where it
is unsure, and computes what it missed when it is asked again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from foredraft.core.drafter import Ask, Chooser, Guess
from foredraft.core.noise import PICKS
from foredraft.core.nouns import COMMITTED, Doubles, Draft
from foredraft.core.pick import Drawn
from foredraft.core.round import Turn, play, prefill
from foredraft.core.rules import DRAFT, Dice
from foredraft.core.target import Cache, Target
from foredraft.core.tree import Tree
from foredraft.errors import ContextError

CHUNK = 512  # rows of the text in one pass of catching up
WINDOW = 256  # tokens before the present that are read when the drafter starts, or was away for more
CONTEXT_ROWS = 6  # most tokens that are drafted for the draft model
HELD_ON = 0.8  # of the next pass's tokens, what is accepted where the path is right, until experience says
SPEED = 0.1


class DraftTarget(Target, Protocol):
    """A model to draft with (`models/draft.py`). Its rows of logits may be cut to the tokens it drafts."""

    @property
    def said(self) -> Sequence[Guess | Drawn]:
        """What the last `pick` made of each of its rows, the picked token first: a guess; or, where the place
        has a stream of noise of its own, a token and the distribution over the target's vocabulary that it
        was drawn from.
        """


class Context(Protocol):
    """Who drafts for the draft model (`drafters/suffix.py`)."""

    def extend(self, text: Sequence[int], path: Sequence[int], most: int, depth: int, floor: float) -> Draft:
        """A tree of what may follow the text and these drafted tokens."""


@dataclass(eq=False)
class Growth:
    """A draft in the making: a main path, and runners-up beside it."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)
    laws: list[Doubles] = field(default_factory=list)
    path: list[int] = field(default_factory=list)  # the main path's tokens
    end: int = COMMITTED  # its last token's index
    survival: float = 1.0  # of the main path

    def add(self, parent: int, token: int, chance: float, drafter: str) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.drafters.append(drafter)
        return len(self.tokens) - 1

    def draft(self) -> Draft:
        return Draft(
            tuple(self.tokens),
            tuple(self.parents),
            tuple(self.chances),
            tuple(self.drafters),
            tuple(self.laws),
        )


class ModelDrafter:
    """Of one request. `cache` is its place in the draft model's memory, `capacity` the positions it may
    take; `chooser` prices the draft model's passes. The cache is closed by `release`.
    """

    def __init__(
        self,
        name: str,
        target: DraftTarget,
        cache: Cache,
        capacity: int,
        context: Context,
        chooser: Chooser,
        release: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self._target = target
        self._cache = cache
        self._capacity = capacity
        self._context = context
        self._chooser = chooser
        self._release = release
        self._clock = clock
        self._held: list[int] = []  # the tokens in the cache
        self._settled = 0  # of these, how many are known to be the text
        self._skipped = 0  # tokens of the text before them
        self._started = False
        self._per_pass = 1.0  # tokens that a pass gives
        self._held_on = HELD_ON  # of these, what is accepted where the path is right

    def catch_up_s(self, text: Sequence[int]) -> float:
        held = self._skipped + self._agreed(text) if self._started else 0
        missing = min(len(text) - held, WINDOW)
        return self._chooser.seconds(missing) if missing > CONTEXT_ROWS else 0.0

    def least_s(self) -> float:
        return self._chooser.seconds(1)

    def catch_up(self, text: Sequence[int]) -> None:
        """Compute what is missing but for the last token, without any logits."""
        self._align(text, CONTEXT_ROWS)
        known = list(text[self._skipped :])
        try:
            while (missing := len(known) - 1 - self._cache.length) > 0:
                started = self._clock()
                prefill(self._target, self._cache, known, min(CHUNK, missing))
                self._chooser.note_pass(min(CHUNK, missing), self._clock() - started)
        except ContextError:
            self._give_way()
        self._held = known[: self._cache.length]

    def propose(self, ask: Ask) -> Draft:
        """A chain, runners-up beside it where they are worth their rows, and what the context model expects
        after its end. A chain alone, with its distributions, where `ask.drawn`.
        """
        ask = replace(ask, depth=min(ask.depth, self._capacity // 2 - CONTEXT_ROWS))
        self._align(ask.text, ask.depth)
        growth = Growth()
        try:
            while self._goes_on(ask, growth):
                self._step(ask, growth)
        except ContextError:  # other requests hold the draft model's memory: give way, and keep what is there
            self._give_way()
        if growth.path and ask.rate > 0.0 and not ask.drawn and growth.survival > ask.floor > 0.0:
            self._look_beyond(ask, growth)
        return growth.draft()

    def close(self) -> None:
        self._held = []
        self._release()

    def _give_way(self) -> None:
        self._cache.truncate(0)
        self._held, self._started = [], False

    def _agreed(self, text: Sequence[int]) -> int:
        """How much of what the cache holds is still the text. What was so once is not compared again: a text
        only grows.
        """
        known = min(len(self._held), len(text) - self._skipped)
        while self._settled < known and self._held[self._settled] == text[self._skipped + self._settled]:
            self._settled += 1
        return self._settled

    def _align(self, text: Sequence[int], depth: int) -> None:
        """Cut the cache back to what the text has too; start late in a text that is long or does not fit."""
        full = len(text) - self._skipped + depth + CONTEXT_ROWS > self._capacity
        if not self._started or full or len(text) - self._skipped - self._agreed(text) > WINDOW:
            self._skipped = max(0, len(text) - min(WINDOW, self._capacity // 2))
            self._held, self._settled, self._started = [], 0, True
        agreed = min(self._agreed(text), len(text) - self._skipped - 1)
        self._cache.truncate(agreed)
        del self._held[agreed:]
        self._settled = agreed

    def _goes_on(self, ask: Ask, growth: Growth) -> bool:
        """Whether one pass more is worth its time and its tokens' rows."""
        if len(growth.path) >= ask.depth or len(growth.tokens) >= ask.most:
            return False
        if not growth.path:
            return True
        if growth.path[-1] in ask.ends:
            return False
        rows, more = len(growth.tokens), max(1, round(self._per_pass))
        gain = growth.survival * self._held_on * self._per_pass
        return gain >= ask.rate * self._chooser.seconds(2) + ask.price(rows + more) - ask.price(rows)

    def _step(self, ask: Ask, growth: Growth) -> None:
        """One pass of the draft model, and the tokens it adds to the draft."""
        known = [*ask.text[self._skipped :], *growth.path]
        while prefill(self._target, self._cache, known, CHUNK):
            pass
        proposed, turn = self._turn(ask, growth, known)
        rows = turn.num_pending + len(turn.draft)
        started = self._clock()
        (outcome,) = play(self._target, [turn])
        self._chooser.note_pass(rows, self._clock() - started)
        burst = outcome.verdict.burst(turn.draft)
        self._held = [*known, *burst[:-1]]
        self._chooser.learn(proposed, burst)
        if rows - len(turn.draft) <= CONTEXT_ROWS:
            self._chooser.note_round(len(burst), rows, 0.0)
        before, length = growth.survival, len(growth.path)
        self._grow(ask, growth, outcome.verdict.path)
        if (added := len(growth.path) - length) and before > 0.0:
            self._per_pass += SPEED * (added - self._per_pass)
            self._held_on += SPEED * ((growth.survival / before) ** (1 / added) - self._held_on)

    def _turn(self, ask: Ask, growth: Growth, known: list[int]) -> tuple[Draft, Turn]:
        """What the context model proposes for the draft model, and the turn with the part worth its rows."""
        pending = len(known) - self._cache.length
        depth = ask.depth - len(growth.path) - 1
        proposed, chosen = Draft.empty, Draft.empty
        if depth > 0:
            floor = self._chooser.floor(pending)
            proposed = self._context.extend(ask.text, growth.path, CONTEXT_ROWS, depth, floor / 2)
            tree = Tree(self._chooser.belief)
            tree.add(proposed)
            chosen = self._chooser.choose(tree.draft(), pending, CONTEXT_ROWS, depth)
        history = ask.history
        if ask.sampling.penalises and growth.path:
            history = history.extended(growth.path)
        stream = Dice(ask.sampling.seed or 0, len(ask.text)).stream(DRAFT) if ask.drawn else PICKS
        turn = Turn(self._cache, known, history, ask.sampling, chosen, skipped=self._skipped, stream=stream)
        return proposed, turn

    def _grow(self, ask: Ask, growth: Growth, path: Sequence[int]) -> None:
        """Add the tokens of a pass, as many as are wanted. `path` are those of its draft that were right."""
        for row in (0, *(1 + index for index in path)):
            if len(growth.path) >= ask.depth or len(growth.tokens) >= ask.most:
                return
            said = self._target.said[row]
            if isinstance(said, Drawn):
                self._add_drawn(ask, growth, said)
            else:
                self._add_guess(ask, growth, said)

    def _add_guess(self, ask: Ask, growth: Growth, guess: Guess) -> None:
        parent, survival = growth.end, growth.survival
        first, *others = guess.chances()
        growth.end = growth.add(parent, guess.tokens[0], first, self.name)
        growth.path.append(guess.tokens[0])
        growth.survival = survival * ask.belief(self.name, first)
        if ask.rate > 0.0:
            for token, chance in zip(guess.tokens[1:], others, strict=True):
                if survival * ask.belief(self.name, chance) > ask.floor and len(growth.tokens) < ask.most:
                    growth.add(parent, token, chance, self.name)

    def _add_drawn(self, ask: Ask, growth: Growth, drawn: Drawn) -> None:
        """Its chance is that of the likeliest token, whichever was drawn: what decides how far a draft goes
        must not depend on the token that it could leave out.
        """
        chance = float(drawn.law.max())
        growth.end = growth.add(growth.end, drawn.token, chance, self.name)
        growth.path.append(drawn.token)
        growth.laws.append(drawn.law)
        growth.survival *= ask.belief(self.name, chance)

    def _look_beyond(self, ask: Ask, growth: Growth) -> None:
        """The context model goes on where the draft model has stopped: its tokens cost no pass."""
        most, depth = ask.most - len(growth.tokens), ask.depth - len(growth.path)
        if most < 1 or depth < 1:
            return
        further = self._context.extend(ask.text, growth.path, most, depth, ask.floor / growth.survival)
        base = len(growth.tokens)
        for token, parent, chance, name in zip(
            further.tokens, further.parents, further.chances, further.drafters, strict=True
        ):
            growth.add(growth.end if parent == COMMITTED else base + parent, token, chance, name)
