"""What happened in one round, for whoever wants to look: `foredraft run --trace FILE` writes one of these a
line.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RoundEvent:
    """Times are seconds; `position` is that of the first token the round added. Of the drafted tokens,
    `parents` are indexes (-1: the text), `chances` what the controller believed, each where its parent is
    right.
    """

    round: int
    position: int
    drafted: tuple[int, ...]
    parents: tuple[int, ...]
    drafters: tuple[str, ...]
    chances: tuple[float, ...]
    picks: tuple[int, ...]  # the target's own after the text and every drafted token; none if a rule drew
    accepted: int
    tokens: tuple[int, ...]  # what the round added to the text
    draft_s: float
    verify_s: float  # pass and picks; in round 0 all chunks of the prompt too
    predicted_s: float  # of the pass; 0 where no price was known
    predicted_tokens: float  # accepted ones and the bonus token
    reason: str  # why nothing was drafted, or empty

    def line(self) -> str:
        """The event as one line of JSON, without the line's end."""
        return json.dumps(asdict(self))


Trace = Callable[[RoundEvent], None]
