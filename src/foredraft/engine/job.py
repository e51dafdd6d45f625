"""A request on its way through an engine: waiting, or with a place in the target's memory."""

from dataclasses import dataclass

from foredraft.engine.answer import Answer
from foredraft.engine.batch import Seat
from foredraft.engine.kv import KVSequence, blocks_for


@dataclass(eq=False)
class Job:
    """Without a cache it waits."""

    ticket: int
    answer: Answer
    cache: KVSequence | None = None
    preempted: int = 0

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.answer.ids) - (0 if self.cache is None else self.cache.length)

    @property
    def is_decoding(self) -> bool:
        """Whether it has nothing pending but what the last round gave."""
        return self.cache is not None and self.pending == 1

    @property
    def missing(self) -> int:
        """Blocks that it needs to compute what is pending, and does not hold."""
        held = 0 if self.cache is None else len(self.cache.blocks)
        return max(0, blocks_for(len(self.answer.ids) + 1) - held)

    @property
    def place(self) -> KVSequence:
        assert self.cache is not None, f"request {self.ticket} waits"
        return self.cache

    @property
    def seat(self) -> Seat:
        return Seat(self.answer, self.place)
