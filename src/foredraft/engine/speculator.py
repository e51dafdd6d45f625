"""Drafting for one request: asks the drafters, merges what they propose, lets the controller choose, and
learns from what the target said.

A drafter cannot change the text, and it cannot end it either: one that raises is reported once and not asked
again.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from foredraft.core.constraint import Constraint, pruned
from foredraft.core.drafter import Ask, Belief, Drafter, LaggingDrafter, at_face_value, free
from foredraft.core.history import History
from foredraft.core.nouns import Draft
from foredraft.core.sampling import Sampling
from foredraft.core.tree import Tree, best_part, survivals
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.completion import DrafterFigures
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.proposal import completed, report
from foredraft.engine.worth import Worth

FEW = 4  # rows of text in a pass that drafts may join: not a prompt's last chunk
MOST = 48  # tokens of a draft where the controller decides
FIRST_ROUNDS = 40.0  # an answer is expected to go on for as long as it did, and for so long at least

SURE = 0.97  # no drafter is surer of a token, by experience, often enough to be asked at this price of a row

OFF, MEASURING, NO_ROOM = "off", "measuring the pass", "no room"
NO_GUESS, NOT_WORTH, TOO_DEAR = "no guess", "not worth its price", "rows too dear"


@dataclass(frozen=True)
class Limits:
    """What bounds every draft of a request."""

    vocab: int
    ends: Collection[int]
    k: int | None = None  # tokens of every draft; None: the controller decides


@dataclass(frozen=True, eq=False)
class Moment:
    """Where a request stands when a round begins."""

    text: Sequence[int]
    history: History
    sampling: Sampling
    pending: int  # rows the pass has without any draft
    room: int  # rows that fit beside them
    depth: int  # drafted tokens that can still be of use
    drawn: bool = False  # the rule judges by distributions
    constraint: Constraint | None = None


class Speculator:
    """Of one request. Without drafters it proposes nothing, and costs nothing."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        controller: Controller,
        limits: Limits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.controller = controller
        self._drafters = list(drafters)
        # Noted once: what a protocol asks of a class takes longer to check than a round has time for.
        self._lagging = {drafter.name: drafter for drafter in drafters if isinstance(drafter, LaggingDrafter)}
        self._limits = limits
        self._clock = clock
        self._worths = {drafter.name: Worth() for drafter in drafters}
        self._proposed: list[Draft] = []  # of this round, as the drafters made them
        self._level = 0.0  # when the drafter that is asked had come level with the text
        self._worked_s = 0.0  # of this round: all drafters' seconds, without catching up
        self._spent: dict[str, float] = {}  # of this round: seconds of those who take time
        self._rounds = 0
        self._drafted: dict[str, int] = {}
        self._accepted: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self.reason = ""  # why the last draft was empty

    @property
    def is_fixed(self) -> bool:
        """Whether drafts are as long as was asked for, whatever that costs."""
        return self._limits.k is not None

    @property
    def worked_s(self) -> float:
        """What all drafters took in this round, without what is an investment."""
        return self._worked_s

    def draft(self, moment: Moment) -> Draft:
        """What is to be checked in this round by a request that has the pass to itself."""
        return self.decide(self._choose(self.wish(moment), moment))

    def wish(self, moment: Moment) -> Draft:
        """All that the drafters propose in this round. Where drafts have a fixed length, or are drawn, it is
        the draft; else what is worth its rows has to be chosen from it.
        """
        self._proposed, self._spent, self._worked_s = [], {}, 0.0
        self._rounds += 1
        self.reason = self._obstacle(moment)
        if self.reason:
            return Draft.empty
        tree = Tree(self._belief, self._limits.ends)
        for drafter in list(self._drafters):
            if self._limits.k is not None and len(tree) >= self._limits.k:
                break
            proposed = self._ask(drafter, moment, tree)
            if proposed.laws:  # drawn: whatever was left out of it would bias the text
                return proposed
        if not len(tree):
            self.reason = NO_GUESS
        return self._choose(tree.draft(), moment) if self.is_fixed else tree.draft()

    def decide(self, draft: Draft) -> Draft:
        """This part of the wish goes into the pass."""
        if not len(draft):
            self.reason = self.reason or NOT_WORTH
        return draft

    def learn(self, draft: Draft, accepted: Sequence[int], tokens: Sequence[int], rows: int) -> None:
        """What became of the round: the accepted tokens of the draft by index, all tokens it gave, the rows
        of the pass.
        """
        for index, name in enumerate(draft.drafters):
            self._drafted[name] = self._drafted.get(name, 0) + 1
            self._accepted.setdefault(name, 0)
            if index in accepted:
                self._accepted[name] += 1
        if self._limits.k is None and self.controller.cost.is_known:
            self._settle(len(tokens) - 1, rows, rows - len(draft))
        for proposed in self._proposed:
            self.controller.learn(proposed, tokens)

    def _settle(self, accepted: int, rows: int, pending: int) -> None:
        """Against a round without any draft, which is what nobody may be slower than."""
        cost, plain = self.controller.cost, self.controller.pace.plain
        for name, worth in self._worths.items():
            seconds = self._spent.get(name)
            if seconds is None:
                worth.settle(0.0)
            else:
                longer = cost.seconds(rows) - cost.seconds(pending) + seconds
                worth.settle(accepted - longer * plain)

    def expected(self, draft: Draft) -> float:
        """Tokens that a round with this draft is expected to give."""
        return 1.0 + sum(survivals(draft)) if draft.chances else 1.0

    @property
    def by_drafter(self) -> Mapping[str, DrafterFigures]:
        names = [*dict.fromkeys([*self._seconds, *self._drafted])]
        return {
            name: DrafterFigures(
                self._drafted.get(name, 0), self._accepted.get(name, 0), self._seconds.get(name, 0.0)
            )
            for name in names
        }

    def close(self) -> None:
        """Free what the drafters hold."""
        while self._drafters:
            drafter = self._drafters.pop()
            try:
                drafter.close()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the text
                report(drafter, error)

    @property
    def _belief(self) -> Belief:
        return self.controller.belief if self._limits.k is None else at_face_value

    def _obstacle(self, moment: Moment) -> str:
        if not self._drafters or self._limits.k == 0:
            return OFF
        if min(moment.room, moment.depth) < 1:
            return NO_ROOM
        if self._limits.k is None and not self.controller.cost.is_known:
            return MEASURING
        if self._limits.k is None and self.controller.floor(moment.pending) > SURE:
            return TOO_DEAR
        return ""

    def most(self, moment: Moment) -> int:
        """Tokens that a draft may have."""
        return min(moment.room, MOST if self._limits.k is None else self._limits.k)

    def _choose(self, draft: Draft, moment: Moment) -> Draft:
        if draft.laws:
            return draft
        if self._limits.k is None:
            return self.controller.choose(draft, moment.pending, self.most(moment), moment.depth)
        return best_part(draft, self.most(moment), moment.depth)

    def _ask(self, drafter: Drafter, moment: Moment, tree: Tree) -> Draft:
        """Ask one drafter, if that pays, and add to the tree what it says."""
        worth, rate = self._worths[drafter.name], self.controller.rate if self._limits.k is None else 0.0
        before = 0.0
        lag = self._lag(drafter, moment.text)
        if lag is None:
            return Draft.empty
        if priced := self._limits.k is None and (lag > 0.0 or not worth.is_negligible(rate)):
            if self._is_held_up(drafter, moment):
                return Draft.empty
            before = self._value(tree, moment)
            if not worth.pays(before, rate, lag, self._rounds_left(moment)):
                worth.skip(before)
                return Draft.empty
        started = self._level = self._clock()
        proposed = self._propose(drafter, self._question(moment), catch_up=lag > 0.0)
        caught_up_s, seconds = self._level - started, self._clock() - self._level
        self._seconds[drafter.name] = self._seconds.get(drafter.name, 0.0) + caught_up_s + seconds
        self._worked_s += seconds
        if proposed.laws and not moment.drawn:  # nobody judges by them
            proposed = replace(proposed, laws=())
        if moment.constraint is not None:  # tokens that cannot follow teach nothing of the drafter either
            proposed = pruned(proposed, moment.constraint)
        self._proposed.append(proposed)
        if proposed.laws:  # judged alone
            tree = Tree(self._belief, self._limits.ends)
        tree.add(proposed)
        if priced:
            worth.note(before, self._value(tree, moment) - before - rate * seconds)
            # The first catching up is an investment, judged by `pays` alone.
            self._spent[drafter.name] = seconds + (caught_up_s if worth.is_started else 0.0)
        worth.note_time(seconds)
        return proposed

    def _is_held_up(self, drafter: Drafter, moment: Moment) -> bool:
        """Whether others lose more by waiting for a pass of this drafter than a token is worth."""
        lagging, pace = self._lagging.get(drafter.name), self.controller.pace
        if lagging is None or pace.size == 1:
            return False
        return pace.rate * lagging.least_s() > 1.0 - self.controller.floor(moment.pending)

    def _value(self, tree: Tree, moment: Moment) -> float:
        return self.controller.worth(self._choose(tree.draft(), moment), moment.pending)

    def _rounds_left(self, moment: Moment) -> float:
        """That a drafter may count on."""
        return min(max(FIRST_ROUNDS, float(self._rounds)), float(moment.depth + 1))

    def _question(self, moment: Moment) -> Ask:
        fixed = self._limits.k is not None
        return Ask(
            text=moment.text,
            most=self.most(moment),
            depth=min(moment.depth, self.most(moment)),
            sampling=moment.sampling,
            history=moment.history,
            floor=0.0 if fixed else self.controller.floor(moment.pending),
            rate=0.0 if fixed else self.controller.rate,
            price=free if fixed else self.controller.prices(moment.pending),
            drawn=moment.drawn,
            ends=self._limits.ends,
            belief=self._belief,
        )

    def _lag(self, drafter: Drafter, text: Sequence[int]) -> float | None:
        """Seconds that the drafter is behind; None if it failed."""
        lagging = self._lagging.get(drafter.name)
        if lagging is None:
            return 0.0
        try:
            return lagging.catch_up_s(text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the text
            self._leave_out(drafter, error)
            return None

    def _propose(self, drafter: Drafter, ask: Ask, catch_up: bool) -> Draft:
        try:
            if catch_up:
                self._lagging[drafter.name].catch_up(ask.text)
            self._level = self._clock()
            return completed(drafter.propose(ask), drafter.name, self._limits.vocab, ask.most)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the text
            self._leave_out(drafter, error)
            return Draft.empty

    def _leave_out(self, drafter: Drafter, error: Exception) -> None:
        """Free what it holds at once; if it fails at that too, it was reported already."""
        report(drafter, error)
        self._drafters = [other for other in self._drafters if other is not drafter]
        with suppress(Exception):
            drafter.close()


def idle(vocab: int) -> Speculator:
    """For a request that is not drafted for."""
    return Speculator((), Controller(PassCost(), Acceptance()), Limits(vocab, ()))
