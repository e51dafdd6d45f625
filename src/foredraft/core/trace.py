"""What happened in one round, for whoever wants to look: `foredraft run --trace FILE` writes one of these a
line.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RoundEvent:
    """Times are seconds; `position` is that of the first token the round added."""

    round: int
    position: int
    drafted: tuple[int, ...]
    parents: tuple[int, ...]
    picks: tuple[int, ...]  # the target's own token after the text, and after every drafted token
    accepted: int
    tokens: tuple[int, ...]  # what the round added to the text
    draft_s: float
    verify_s: float  # pass and picks; in round 0 all chunks of the prompt too

    def line(self) -> str:
        """The event as one line of JSON, without the line's end."""
        return json.dumps(asdict(self))


Trace = Callable[[RoundEvent], None]
