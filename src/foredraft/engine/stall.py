"""How many rows of prompts a pass may have, so that those who write go on writing: no more, together with
drafts, than let it last `STALL` times as long as one without prompts.
"""

from foredraft.engine.cost import PassCost

CHUNK = 256  # rows of prompts in a pass beside which nobody decodes
FEWEST = 8  # in any pass: prompts always get on
UNPRICED = 32  # while nothing is known of what rows cost
STALL = 2.0
DRAFT_STALL = 3.0  # the same for drafts of several requests without a prompt: what is long brings many tokens
USUAL_SPEED = 0.1  # at which the usual duration of a round follows
DRIFT_STEP = 1.03  # by which follows how much longer than foreseen the median pass with prompts takes


class Stall:
    """Of one scheduler."""

    def __init__(self, cost: PassCost) -> None:
        self._cost = cost
        self._usual_s = 0.0  # of a round beside which no prompt was computed
        self._drift = 1.0  # a long text before a prompt's rows makes them slower than their number tells

    def note(self, is_plain: bool, seconds: float, foreseen_s: float) -> None:
        """A round took so long, with prompts or (`is_plain`) without; 0 foreseen: no price was known."""
        if is_plain:
            self._usual_s += (seconds - self._usual_s) * (USUAL_SPEED if self._usual_s else 1.0)
        elif foreseen_s > 0.0:
            longer = seconds > foreseen_s * self._drift  # by how much says little: it may have been disturbed
            self._drift = max(1.0, self._drift * DRIFT_STEP if longer else self._drift / DRIFT_STEP)

    def rows(self, decoding: int, prompts: int = 1, apart: bool = False) -> int:
        """Beside so many rounds; or `apart`, in a pass before theirs. Where many prompts wait, whose requests
        are stalled as well, those who write wait for longer.
        """
        if not decoding:
            return CHUNK
        if not self._cost.is_known:
            return UNPRICED
        alone = self._cost.seconds(decoding)
        patience = STALL * (1.0 + max(0, prompts - 1) / (prompts + decoding))
        limit = patience * max(self._usual_s, alone) / self._drift
        return self._most(0, limit - alone) if apart else self._most(decoding, limit)

    def room(self, decoding: int, prompt_rows: int) -> int | None:
        """Rows for drafts; None: as many as they are worth. Whoever is alone waits for nobody's."""
        if decoding == 0 or (decoding == 1 and not prompt_rows):
            return None
        if prompt_rows:
            return max(0, self.rows(decoding) - prompt_rows)
        return self._most(decoding, DRAFT_STALL * self._cost.seconds(decoding))

    def _most(self, decoding: int, limit: float) -> int:
        """Rows beside so many that a pass of this many seconds has time for."""
        low, high = FEWEST, CHUNK
        while low < high:
            middle = (low + high + 1) // 2
            if self._cost.seconds(decoding + middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low
