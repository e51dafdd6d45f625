"""Rounds of requests that share passes: all of them draft, their tokens compete for rows, one pass checks
them. A single request is a batch of one; there is no other path.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.core.nouns import Draft, Floats
from foredraft.core.round import Piece, play, score
from foredraft.core.target import Cache, Target
from foredraft.core.trace import RoundEvent
from foredraft.core.tree import Wish, best_parts
from foredraft.engine.answer import Answer, Played
from foredraft.engine.completion import Burst
from foredraft.engine.cost import PassCost
from foredraft.engine.pace import Pace
from foredraft.engine.speculator import FEW

Clock = Callable[[], float]


@dataclass(frozen=True, eq=False)
class Seat:
    """A request with its place in the target's memory."""

    answer: Answer
    cache: Cache

    @property
    def pending(self) -> int:
        return len(self.answer.ids) - self.cache.length

    def piece(self, count: int) -> Piece:
        return Piece(self.cache, self.answer.ids, count)


@dataclass(frozen=True, eq=False)
class Pass:
    """How a pass went. `taken`: of every seat its burst and event, or why its answer cannot go on."""

    taken: Sequence[tuple[Burst, RoundEvent] | Exception]
    rows: int
    prompt_rows: int
    draft_s: float
    pass_s: float
    predicted_s: float  # of the pass; 0 where no price is known
    plain_s: float  # that the same tokens are expected to take without drafting; 0 where no price is known
    spent_s: float  # that this round is expected to take, drafting included


class Batch:
    """`pace` is that of the requests that decode together; the clock times what is decided upon."""

    def __init__(self, target: Target, cost: PassCost, clock: Clock = time.perf_counter) -> None:
        self.pace = Pace(cost)
        self._target = target
        self._cost = cost
        self._clock = clock

    def compute(self, seat: Seat, count: int) -> Pass:
        """The next tokens of a prompt in a pass of their own, with their logprobs where that is wanted."""
        started = self._clock()
        scored: Sequence[Floats] = ()
        if not seat.answer.is_scored:
            play(self._target, (), [seat.piece(count)])
        else:
            scored = list(score(self._target, seat.cache, seat.answer.ids, count))
        pass_s, usual_s = self._clock() - started, self._cost.seconds(count)
        seat.answer.note_prompt(pass_s, scored)
        return Pass((), count, count, 0.0, pass_s, usual_s, usual_s, usual_s)

    def play(
        self,
        seats: Sequence[Seat],
        others: Sequence[tuple[Seat, int]] = (),
        company: int = 1,
        room: int | None = None,
    ) -> Pass:
        """One round of each seat, all in one pass, and beside them so many tokens of others' prompts.
        `company`: requests whose time it takes, with or without a part in it. `room`: rows for drafts, where
        the pass may not last for as long as they are worth.
        """
        self.pace.size = max(company, len(seats))
        prompt_rows = sum(count for _, count in others) + sum(seat.pending - 1 for seat in seats)
        pending = prompt_rows + len(seats)
        is_plain = self.pace.size == len(seats) and all(seat.pending <= FEW for seat in seats)
        drafts, draft_s = self._draft(seats, pending, room)
        started = self._clock()
        rows = pending + sum(map(len, drafts))
        predicted_s = self._cost.seconds(rows)
        turns = [seat.answer.turn(seat.cache, draft) for seat, draft in zip(seats, drafts, strict=True)]
        outcomes = play(self._target, turns, [seat.piece(count) for seat, count in others])
        ended = self._clock()
        self._cost.note(rows, ended - started)
        for seat, _ in others:
            seat.answer.note_prompt(ended - started)
        taken = [
            _take(seat, Played(draft, outcome, rows, seconds, ended - started, predicted_s, ended))
            for seat, draft, outcome, seconds in zip(seats, drafts, outcomes, draft_s, strict=True)
        ]
        given = sum(map(len, (outcome.verdict.path for outcome in outcomes))) + len(seats)
        worked_s = sum(seat.answer.speculator.worked_s for seat in seats)
        if is_plain:
            self.pace.note(given, rows, worked_s)
        plain_s = self._cost.seconds(pending)
        if seats:  # and what drafts gave beyond it, in rounds without prompts
            plain_s += self._cost.seconds(len(seats)) * (given - len(seats)) / len(seats)
        spent_s = self._cost.seconds(rows) + worked_s
        return Pass(taken, rows, prompt_rows, sum(draft_s), ended - started, predicted_s, plain_s, spent_s)

    def _draft(
        self, seats: Sequence[Seat], pending: int, room: int | None
    ) -> tuple[list[Draft], list[float]]:
        """What each seat has checked, and the seconds that drafting for it took."""
        wishes, seconds = [], []
        for seat in seats:
            started = self._clock()
            speculator = seat.answer.speculator
            speculator.controller.pace = self.pace
            moment = seat.answer.moment(seat.cache, pending - seat.pending)
            wishes.append(Wish(speculator.wish(moment), speculator.most(moment), moment.depth))
            seconds.append(self._clock() - started)
        return self._share_out(seats, wishes, pending, room), seconds

    def _share_out(
        self, seats: Sequence[Seat], wishes: Sequence[Wish], pending: int, room: int | None
    ) -> list[Draft]:
        """Drafts that may not be cut have their rows; the others compete for more."""
        drafts = [wish.draft for wish in wishes]
        open_ones = [
            index
            for index, (seat, wish) in enumerate(zip(seats, wishes, strict=True))
            if len(wish.draft) and not wish.draft.laws and not seat.answer.speculator.is_fixed
        ]
        if open_ones:
            settled = sum(len(draft) for index, draft in enumerate(drafts) if index not in open_ones)
            prices = seats[open_ones[0]].answer.speculator.controller.prices(pending + settled)
            parts = best_parts([wishes[index] for index in open_ones], prices, room)
            for index, part in zip(open_ones, parts, strict=True):
                drafts[index] = part
        return [seat.answer.speculator.decide(draft) for seat, draft in zip(seats, drafts, strict=True)]


def _take(seat: Seat, played: Played) -> tuple[Burst, RoundEvent] | Exception:
    """The round is over for all, and one that cannot use it must not take it from the others."""
    try:
        return seat.answer.take(played)
    except Exception as error:  # noqa: BLE001 - reported by whoever asked for the answer
        return error
